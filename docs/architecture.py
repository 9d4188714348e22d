"""Draws docs/images/architecture.svg, the rooms as import-linter checks them."""

import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = Path(__file__).parent / "images" / "architecture.svg"
WIDTH, HEIGHT, GAP = 720, 38, 8

CONTENTS = {
    "testing": "rounds without an engine, and the contract of every method",
    "cli": "command line: flags, lists, rehearsals",
    "api": "run, compare and load, for Python",
    "client": "the clients' part of the methods, in the training loop of any app",
    "flower": "the methods as strategies of any Flower app",
    "fleet": "the boards: names, keys, how they are",
    "devices": "flwr run: nodes, messages, deadlines",
    "report": "pages about runs, comparisons and traces",
    "comparison": "cells side by side, tables, intervals",
    "loggers": "progress, TensorBoard, MLflow, W&B",
    "engine": "the round loop; transports: inline, Ray, late; checkpoints; the run folder",
    "plan": "every spec of a run's settings, bound once",
    "interop": "strategies of Flower as methods of ours",
    "clients": "local SGD: rules, gradients, memory; simulated, or on a device",
    "federation": "data, model and trace, which clients and server make alike",
    "strategies": "the methods, one per file",
    "config": "settings, and grids of them",
    "traces": "who is there, and how much work each client finishes",
    "tasks": "data sets, partitions, models",
    "base": "the contract of server and client, specs, allowed values, files",
}


def layers() -> list[list[str]]:
    """Return the rooms from top to bottom, those of one layer beside each other."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = next(c for c in content["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    return [[name.split(".")[-1].strip() for name in layer.split("|")] for layer in contract["layers"]]


def svg() -> str:
    """Return the picture."""
    rows = layers()
    height = len(rows) * (HEIGHT + GAP) + GAP
    box = f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for row, names in enumerate(rows):
        width = (WIDTH - GAP * (len(names) + 1)) / len(names)
        for column, name in enumerate(names):
            x, y = GAP + column * (width + GAP), GAP + row * (HEIGHT + GAP)
            fill = "#e8f0fe" if name in ("strategies", "clients", "traces") else "#f4f4f4"
            parts.append(
                f'<rect x="{x:g}" y="{y}" width="{width:g}" height="{HEIGHT}" rx="5" fill="{fill}" '
                'stroke="#8a8a8a"/>'
            )
            text = f'<tspan font-weight="bold">{name}</tspan>  {escape(CONTENTS[name])}'
            parts.append(f'<text x="{x + 10:g}" y="{y + 24}" xml:space="preserve">{text}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(svg(), encoding="utf-8")
