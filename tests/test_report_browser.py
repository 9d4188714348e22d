"""Reports in headless Chromium: what is drawn, what the toggles do, on a phone, in the dark, on paper."""

import json
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

import sim
from fedtide.report.__main__ import main

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("Chromium is not installed", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

SMALL = ["--model=logistic", "--num-clients=8", "--num-rounds=12", "--local-steps=6", "--client-gpus=0"]
SMALL += ["--num-workers=1"]
CHURN = "phones:cost=30,late=true+lost:p=0.1"
SMALL += ["--arrivals=7=4", "--departures=0=8"]
SEVERAL = ["--strategy", "fedbuff", "--seed", "0", "1", "--trace", CHURN, CHURN.replace("0.1", "0.2")]
PAGES = ("run", "comparison", "search", "trace", "timeline", "hostile")
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
# Changes when anything changes that a plot shows.
STATE = "plot => JSON.stringify([plot.data.map(t => [t.visible, t.x, t.y, t.cells]), plot.layout])"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report of each kind: all toggles occur."""
    base = tmp_path_factory.mktemp("reports")
    assert (
        sim.main(
            [*SMALL, f"--trace={CHURN}", "--engine=inline", "--report=link", f"--run-dir={base / 'one'}"]
        )
        == 0
    )
    (run,) = (base / "one").glob("*/")
    hostile = Path(shutil.copytree(run, base / "hostile"))
    config = (hostile / "config.toml").read_text()
    config = config.replace("scheme-c", HOSTILE).replace("phones:cost", HOSTILE)
    (hostile / "config.toml").write_text(config)
    with (hostile / "metrics.jsonl").open("a") as file:
        failure = {"round": 13, "failed": {"1": HOSTILE}, "events": [{"event": HOSTILE, "client": 1}]}
        file.write(json.dumps(failure) + "\n")
    assert main([str(hostile)]) == 0
    assert sim.main([*SMALL, *SEVERAL, "--clients-per-round=4", f"--run-dir={base}"]) == 0
    assert sim.main([*SMALL, "--num-rounds=500", "--show-trace=phones", f"--run-dir={base}"]) == 0
    (compared,), (trace,) = base.glob("compare-*"), base.glob("trace-*.html")
    event_time = [*SMALL, "--num-rounds=700", "--round-ends=1", "--clients-per-round=4"]
    assert sim.main([*event_time, "--show-trace=phones+lost:p=0.1", f"--run-dir={base / 'event-time'}"]) == 0
    (timeline,) = (base / "event-time").iterdir()
    search = Path(shutil.copytree(compared, base / "search"))
    trials = [{"values": {"learning-rate": rate}, "score": rate} for rate in (0.1, 0.3)]
    found = {"trials": trials, "chosen": trials[1]["values"], "logarithmic": [], "widened": {}, "at_end": {}}
    searches = [{"varied": {"trace": trace}, **found} for trace in SEVERAL[-2:]]
    (search / "tuning.json").write_text(json.dumps({"searches": searches}))
    assert main([str(search)]) == 0
    folders = {"run": run, "comparison": compared, "search": search, "hostile": hostile}
    return {name: folder / "report.html" for name, folder in folders.items()} | {
        "trace": trace,
        "timeline": timeline,
    }


@pytest.fixture(scope="module")
def pages(files: dict[str, Path]) -> Iterator[dict[str, Any]]:
    """The pages in tabs of one browser, with what they logged and requested as attributes."""
    tabs = {}
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1200, "height": 900})
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        for name, file in files.items():
            tab = tabs[name] = context.new_page()
            tab.logged, tab.requested = [], []
            tab.on("console", lambda message, tab=tab: tab.logged.append(message.text))
            tab.on("pageerror", lambda error, tab=tab: tab.logged.append(str(error)))
            tab.on("request", lambda request, tab=tab: tab.requested.append(request.url))
            tab.goto(file.as_uri())
            tab.wait_for_selector("html[data-drawn]")
        yield tabs
        browser.close()


@pytest.fixture(params=PAGES)
def tab(request: pytest.FixtureRequest, pages: dict[str, Any]) -> Any:
    """Each page in turn."""
    return pages[request.param]


def until(tab: Any, condition: str) -> None:
    """Wait for a condition; Playwright's own way needs eval, which the page forbids."""
    wait_until(lambda: tab.evaluate(condition))


def test_all_is_drawn_and_described_without_errors_and_network(tab: Any) -> None:
    """Headings in order, and for each plot a name and a table for screen readers."""
    assert tab.logged == []
    assert {url.partition(":")[0] for url in tab.requested} == {"file"}
    plots = tab.query_selector_all(".plot")
    assert len(plots) == tab.evaluate("Object.keys(page.figures).length")
    for plot in plots:
        drawn = plot.query_selector_all(".trace, .heatmaplayer image, .bars .point, .fills path")
        assert drawn, plot.get_attribute("aria-label")
        assert plot.evaluate("plot => plot.layout.xaxis.title.text")
        assert len(plot.get_attribute("aria-label")) > 30
        assert plot.evaluate("plot => plot.closest('section').querySelector('details tbody tr') !== null")
    assert tab.evaluate("window.hacked") is None
    levels = tab.evaluate("Array.from(document.querySelectorAll('h1,h2,h3'), h => +h.tagName[1])")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert tab.evaluate("document.documentElement.lang") == "en"


def test_what_the_pages_hold(pages: dict[str, Any]) -> None:
    assert pages["comparison"].query_selector("select")  # names too long for buttons
    assert pages["trace"].query_selector("input[value=share]")
    names = {name: tab.evaluate("Object.keys(page.figures).join(' ')") for name, tab in pages.items()}
    whole = "curves participation bias events seconds"
    search = whole.replace("curves", "curves tuning")
    traces = {"trace": "participation bias", "timeline": "gantt lag participation"}
    assert names == {"run": whole, "comparison": whole, "search": search, **traces, "hostile": whole}
    assert "a cell stands for" in pages["trace"].inner_text("#participation").lower()


def test_a_page_says_that_the_file_it_links_to_is_missing(
    pages: dict[str, Any], files: dict[str, Path], tmp_path: Path
) -> None:
    assert not pages["run"].is_visible("#missing")
    assert files["run"].stat().st_size < 300_000
    moved = tmp_path / "run" / "report.html"
    moved.parent.mkdir()
    shutil.copy(files["run"], moved)
    tab = pages["run"].context.new_page()
    tab.goto(moved.as_uri())
    assert "Plots need ../plotly-" in tab.inner_text("#missing")
    tab.close()


def test_each_toggle_changes_its_plot(tab: Any) -> None:
    chosen = tab.evaluate(
        """() => Array.from(document.querySelectorAll("section:has(.toggles)"), section => {
          const plot = section.querySelector(".plot"), state = STATE, seen = [];
          for (const input of section.querySelectorAll(".toggles input, .toggles option")) {
            const before = state(plot), shown = input.checked || input.selected;
            if (input.tagName === "INPUT") input.click();
            else {
              input.selected = true;
              input.parentElement.dispatchEvent(new Event("change", { bubbles: true }));
            }
            seen.push([shown, before !== state(plot)]);
          }
          return seen;
        })""".replace("STATE", STATE)
    )
    assert chosen
    assert all(shown or changed for section in chosen for shown, changed in section)
    assert tab.logged == []


def test_the_legend_shows_and_hides(pages: dict[str, Any]) -> None:
    tab = pages["comparison"]
    visible = "() => document.querySelector('#curves .plot').data.filter(trace => trace.visible).length"
    before = tab.evaluate(visible)
    button = tab.query_selector("#curves .legend button")
    button.focus()
    tab.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    assert 0 < tab.evaluate(visible) < before
    tab.keyboard.press("Space")
    assert tab.evaluate(visible) == before


def test_the_keyboard_reaches_everything(tab: Any) -> None:
    """Tab goes through links, groups of radio buttons, lists, legends, tables; arrows choose."""
    wanted = tab.evaluate(
        """() => { document.activeElement.blur(); window.reached = new Set();
          document.addEventListener("focusin", event => window.reached.add(event.target));
          const all = document.querySelectorAll("a, button, select, summary, fieldset, .scroll");
          window.wanted = Array.from(all).filter(e => e.checkVisibility());
          return window.wanted.length; }"""
    )
    for _ in range(3 * wanted):
        tab.keyboard.press("Tab")
    missed = tab.evaluate(
        """() => window.wanted.filter(e => {
            const own = e.tagName === "FIELDSET" ? Array.from(e.querySelectorAll("input")) : [e];
            return !own.some(part => window.reached.has(part));
          }).map(e => e.outerHTML.slice(0, 80))"""
    )
    assert missed == []
    radio = tab.query_selector(".toggles input:checked")
    radio.focus()
    outline = "e => getComputedStyle(e.nextElementSibling).outlineStyle"
    assert radio.evaluate(outline) == "solid"
    before = tab.evaluate("document.activeElement.value")
    tab.keyboard.press("ArrowRight")
    assert tab.evaluate("document.activeElement.value") != before
    tab.keyboard.press("ArrowLeft")


def test_results_can_be_copied(pages: dict[str, Any], files: dict[str, Path]) -> None:
    tab = pages["comparison"]
    tab.bring_to_front()
    tab.click("text=Copy as CSV")
    tab.wait_for_selector("text=Copied.")
    table = (files["comparison"].parent / "table.csv").read_text()
    assert tab.evaluate("navigator.clipboard.readText()") == table
    tab.click("text=Copy as Markdown")
    until(tab, "navigator.clipboard.readText().then(text => text.startsWith('|'))")


def test_on_a_phone(tab: Any) -> None:
    tab.set_viewport_size({"width": 390, "height": 844})
    until(tab, "Array.from(document.querySelectorAll('.main-svg')).every(s => s.clientWidth <= 390)")
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    tab.set_viewport_size({"width": 1200, "height": 900})


def test_in_the_dark(tab: Any) -> None:
    light = """() => [document.body, document.querySelector(".plot text")].map(e => {
      const style = getComputedStyle(e), colour = e === document.body ? style.backgroundColor : style.fill;
      return colour.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0) / 765; })"""
    assert [round(value) for value in tab.evaluate(light)] == [1, 0]
    tab.emulate_media(color_scheme="dark")
    until(tab, f"({light})()[1] > 0.5")
    assert [round(value) for value in tab.evaluate(light)] == [0, 1]
    tab.emulate_media(color_scheme="light")


def test_on_paper(tab: Any) -> None:
    """Also from a dark screen: white, with dark text, plots as wide as the paper, nothing to operate."""
    tab.emulate_media(media="print", color_scheme="dark")
    until(tab, "Array.from(document.querySelectorAll('.main-svg')).every(s => s.clientWidth <= 680)")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.evaluate("getComputedStyle(document.querySelector('.plot text')).fill") == "rgb(28, 30, 33)"
    for operated in tab.query_selector_all(".toggles, .copy, nav"):
        assert not operated.is_visible()
    tab.emulate_media(media="screen", color_scheme="light")
    pdf = tab.pdf(format="A4")
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 20_000
