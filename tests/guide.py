"""The guide docs/deploy.md: its commands, for as many boards as a lab has."""

from __future__ import annotations

import re
import shutil

from flower import ROOT
from machines import Lab

GUIDE = (ROOT / "docs" / "deploy.md").read_text()
BOARDS = 5  # that the guide sets up
PARTS = ("clients", "deploy", "examples", "fedtide", "strategies", "traces")


def commands(section: str, boards: int = BOARDS) -> list[str]:
    """Return the blocks of commands of a section, for so many boards."""
    (text,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", GUIDE, re.M | re.S)
    return [_for_boards(block, boards) for block in re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)]


def lay_source(lab: Lab) -> None:
    """Give the server this folder, whose packages are then those of the tests."""
    source = lab.folder / "source"
    source.mkdir()
    for part in PARTS:
        shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("sim.py", "README.md", "pyproject.toml", "requirements.txt"):
        shutil.copy(ROOT / name, source)
    for file in (source / "deploy").glob("requirements-device*.txt"):  # what is there counts
        file.write_text(re.sub(r"==[0-9.*]+", "", file.read_text()))
    lab.server.root(f"cp -r {source} /home/op/fedtide && chown -R op:op /home/op/fedtide")


def _for_boards(text: str, number: int) -> str:
    """Return commands for so many boards; what is done to pi-2 is done to the last one of fewer."""
    for board in ("{}", "pi-{0}=pi-{0}.pub", "pi@pi-{}"):
        written, wanted = (" ".join(map(board.format, range(boards))) for boards in (BOARDS, number))
        text = text.replace(written, wanted)
    text = re.sub(r"(num-clients ?=? ?)5", rf"\g<1>{number}", text)
    return text.replace("pi-2", f"pi-{number - 1}") if number < 3 else text
