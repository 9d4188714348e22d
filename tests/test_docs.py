"""The documentation: its pages, its picture and its site; its commands are run, checked or excused."""

import ast
import importlib.util
import itertools
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import fedtide
import strategies
import traces
from fedtide.cli.flags import make_parser, read_values
from fedtide.cli.fleet import rehearsal_values
from fedtide.config.grid import cells
from fedtide.plan import METHODS, Plan

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SECTIONS = ["Algorithm", "State and traffic", "Participation", "Options", "Traps", "Source"]  # of a page


def test_every_method_has_a_page_and_a_line_in_readme() -> None:
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (DOCS / "methods").glob("*.md")}
    titles = {
        name: page for page, text in pages.items() for name in re.findall(r"`(.+?)`", text.splitlines()[0])
    }
    readme, index = (
        (folder / "README.md").read_text(encoding="utf-8") for folder in (ROOT, DOCS / "methods")
    )
    for name in METHODS:
        page = titles[name]
        assert re.findall(r"^## (.*)", pages[page], re.MULTILINE) == SECTIONS, page
        assert f"({page}.md)" in index, name
        assert f"docs/methods/{page}.md" in readme, name


def test_readme_is_read_in_four_minutes() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    assert len(text.split()) <= 900
    text = re.sub(r"\]\([^)]*\)", "]", text)
    assert len(re.findall(r"\w[\w'-]*", text)) <= 900


def test_requirements_are_those_of_the_package_and_its_tests() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    listed = {line.partition("#")[0].strip() for line in lines} - {""}
    extras = project["optional-dependencies"]
    used = {*project["dependencies"], *extras["report"], *extras["tune"], *extras["data"]}
    rest = listed - used
    assert len(listed) == len(used) + len(rest)
    assert rest == {line for line in extras["dev"] if line.startswith(("pytest", "hypothesis"))}


def test_tests_import_only_what_readme_installs() -> None:
    """Of what is installed for developers alone, a test that needs it is skipped where it is missing."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    waiting = [Requirement(line.partition("#")[0]) for line in lines if line.partition("#")[0].strip()]
    installed = set[str]()
    while waiting:
        one = waiting.pop()
        if (name := canonicalize_name(one.name)) not in installed:
            installed.add(name)
            extras = [{"extra": extra} for extra in one.extras or {""}]
            for needed in map(Requirement, metadata.requires(name) or ()):
                waiting += [needed] * any(not needed.marker or needed.marker.evaluate(e) for e in extras)
    of = metadata.packages_distributions()
    here = {path.stem for path in (*ROOT.iterdir(), *(ROOT / "tests").iterdir())}
    for path in (ROOT / "tests").glob("*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for node in itertools.takewhile(lambda node: "importorskip" not in ast.unparse(node), body):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for top in {name.partition(".")[0] for name in names} - here - sys.stdlib_module_names:
                assert {canonicalize_name(name) for name in of[top]} & installed, (path.name, top)


def test_messages_of_the_page_of_errors_are_in_the_code() -> None:
    texts = {
        node.value
        for package in ("fedtide", "strategies", "clients", "traces")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    messages = re.findall(r"^\| `(.+?)` \|", (DOCS / "errors.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(messages) > 30
    for message in messages:
        for part in filter(None, (part.strip(" ;:,().") for part in message.split("..."))):
            assert any(part in text for text in texts), (message, part)


@pytest.mark.parametrize("package", [fedtide, strategies, traces], ids=lambda package: package.__name__)
def test_the_reference_has_all_public_names(package: ModuleType) -> None:
    page = (DOCS / "reference" / f"{package.__name__}.md").read_text(encoding="utf-8")
    assert set(package.__all__) <= set(re.findall(r"\w+", page))


def test_the_picture_of_the_architecture_is_that_of_the_imports() -> None:
    spec = importlib.util.spec_from_file_location("architecture", DOCS / "architecture.py")
    assert spec is not None
    assert spec.loader is not None
    drawn = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drawn)
    assert drawn.PICTURE.read_text(encoding="utf-8") == drawn.svg()


@pytest.mark.slow
def test_the_site_has_no_warning(tmp_path: Path) -> None:
    pytest.importorskip("furo")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", str(DOCS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page, word in (("methods/mimic", "units"), ("traces", "round-robin")):
        assert word in (tmp_path / f"{page}.html").read_text(encoding="utf-8")
    for path in tmp_path.rglob("*.html"):  # what a page loads lies beside it
        loaded = re.findall(
            r"<(?:script|link|img)\b[^>]*?\b(?:src|href)=\"(.*?)\"", path.read_text(encoding="utf-8")
        )
        assert not [address for address in loaded if "//" in address], path
    assert "<math " in (tmp_path / "methods" / "mimic.html").read_text(encoding="utf-8")


# Commands and Python in README, docs/, experiments/: run by a test, checked here, or named with a reason


FILES = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("experiments/*.md")]
PAGES = {path.relative_to(ROOT).as_posix(): path for path in FILES}
PROGRAM = re.compile(r"(?:fedtide|(?:\.venv/bin/)?python sim\.py)(?: |$)")
# By the beginnings of commands: the tests that run them, with settings of their own.
RUN = {
    "python3 -m venv .venv": "test_readme.py, and CI",
    "python -m clients.device": "test_clients_device.py",
    "python -m traces.record": "test_traces_record.py",
    "python experiments/": "test_experiments.py",
    "python benchmarks/": "test_benchmarks.py",
    "flwr run": "test_flower_run.py",
    "fedtide export": "test_export.py",
    "fedtide report": "test_figures.py",
    "fedtide without": "test_without.py",
    **dict.fromkeys(("flwr", "sudo", "mkdir", "for k", "ssh", "scp", "run=", "cd"), "test_deploy.py"),
    **dict.fromkeys(("python -m fedtide fleet", "deploy/"), "test_deploy.py"),
    **dict.fromkeys(("python sim.py --config $run", "python sim.py --rehearse logs"), "test_deploy.py"),
    "cat >": "here, with the files of docs/own-data.md",
}
# What no test runs, and why.
NOT_RUN = {
    "source": "the environment of the tests is active",
    "fedtide-device": "needs boards",
    "ray": "needs several machines",
    "sbatch": "needs Slurm",
    "docker": "needs Docker",
    "ansible-playbook": "needs Ansible",
    "kubectl": "needs Kubernetes",
    "head=": "needs Kubernetes",
    "git clone": "needs programs of others",
    "for n": "needs a data set that is not shipped",
    "without=": "a variable of the commands that follow",
    "python sim.py $without": "flags in a variable",
    "python sim.py --config runs/": "needs a run of one's own",
}
# Pages whose Python a test runs as it stands.
PYTHON = {
    "README.md": "test_readme.py, its commands as well",
    "docs/extending.md": "test_extending.py, its commands as well",
    "docs/flower-app.md": "test_flower_app_page.py",
    "docs/inference.md": "test_export.py",
    "docs/run-folder.md": "test_run_folder_page.py",
    "docs/tasks.md": "test_tasks_client_files.py",
}


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of code of a page."""
    text = PAGES[page].read_text(encoding="utf-8")
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)


def commands(block: str) -> list[str]:
    """Return the commands of a block, without comments, bodies of loops and texts that are passed on."""
    block = re.sub(r"<<'?END'?\n.*?\nEND\n", "END\n", block, flags=re.DOTALL).replace("\\\n", "")
    block = re.sub(r"^for .*?; do\n.*?^done", "for k", block, flags=re.DOTALL | re.MULTILINE)
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in block.splitlines())
    return [line for line in lines if line]


SHOWN = {page: [c for block in blocks(page, "bash") for c in commands(block)] for page in PAGES}
LISTED = (*NOT_RUN, *RUN)
CHECKED = {
    page: [c for c in shown if PROGRAM.match(c) and not c.startswith(LISTED)]
    for page, shown in SHOWN.items()
    if page != "docs/own-data.md"  # whose runs need its files
}


def test_every_command_is_run_or_checked_or_excused() -> None:
    shown = {command for several in SHOWN.values() for command in several}
    assert not [c for c in shown if not PROGRAM.match(c) and not c.startswith(LISTED)]
    assert not [start for start in LISTED if not any(c.startswith(start) for c in shown)]
    assert {page for page in PAGES if blocks(page, "python")} == {*PYTHON}


@pytest.mark.parametrize("page", [page for page, shown in CHECKED.items() if shown])
def test_the_settings_of_a_page_are_valid(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its commands are parsed, and the first and the last of their runs checked."""
    monkeypatch.chdir(ROOT)
    for command in CHECKED[page]:
        words = shlex.split(PROGRAM.sub("", command, count=1))
        values = read_values(arguments := make_parser().parse_args(words))
        if arguments.rehearse:
            values = rehearsal_values(arguments.rehearse, values)
        runs = cells(values, command)
        if " my_" not in command:  # files that a page shows
            for cell in (runs[0], runs[-1]):
                Plan.of(cell.settings)


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
def test_own_data_from_a_table_to_the_files_of_devices(tmp_path: Path) -> None:
    """The page as it stands, in a new folder, up to what needs boards."""
    *steps, device, deployed = blocks("docs/own-data.md", "bash")
    assert device.startswith("fedtide-device")
    here = f'python() {{ "{sys.executable}" "$@"; }}\nfedtide() {{ python -m fedtide "$@"; }}\nset -e\n'
    env = {key: value for key, value in os.environ.items() if key != "COLUMNS"}  # pytest-xdist sets it
    env["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        ["bash", "-c", here + "".join(steps)],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = PAGES["docs/own-data.md"].read_text(encoding="utf-8").partition("strategy   accuracy")[2]
    for line in shown.partition("```")[0].splitlines()[2:]:
        assert line.strip() in done.stdout
    assert deployed.strip() in done.stdout
    rows = [len((tmp_path / f"pump-{k}.csv").read_text().splitlines()) for k in range(1, 5)]
    assert sum(rows) - 4 == len((tmp_path / "pumps.csv").read_text().splitlines()) - 1
