"""The documentation: a page for every method, a picture that is true, a site without warnings."""

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import fedtide
import strategies
import traces
from fedtide.plan import METHODS

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
