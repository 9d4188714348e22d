"""Which part may use which: read from the imports of every file."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GROUND = {
    "flexfl.ground.allowed",
    "flexfl.ground.contract",
    "flexfl.ground.files",
    "flexfl.ground.specs",
    "flexfl.ground.spill",
}  # NumPy and the standard library only
ALLOWED = {
    "flexfl.ground.contract": set(),
    "flexfl.ground.digits": set(),
    "flexfl.ground.files": set(),
    "flexfl.ground.spill": set(),
    "flexfl.ground.allowed": set(),
    "flexfl.ground.specs": {"flexfl.ground.allowed"},
    "flexfl.config": GROUND,
    "flexfl.tasks": {"flexfl.ground.digits", "flexfl.ground.files"},
    "traces": {"flexfl.ground.files"},
    "strategies": GROUND,
    "clients": {*GROUND, "flexfl.config", "flexfl.ground.digits", "flexfl.tasks", "traces"},
    "flexfl.engine": {*GROUND, "clients", "flexfl.config", "flexfl.tasks", "strategies", "traces"},
    "sim": {*GROUND, "flexfl.config", "flexfl.engine"},
}
OURS = set(ALLOWED)
FLOWER = {
    "flwr.app",
    "flwr.client",
    "flwr.clientapp",
    "flwr.common",
    "flwr.server",
    "flwr.server.client_manager",
    "flwr.server.client_proxy",
    "flwr.server.criterion",
    "flwr.server.history",
    "flwr.server.server",
    "flwr.server.strategy",
    "flwr.serverapp",
    "flwr.serverapp.strategy",
}
UNSTABLE = {
    ROOT / "flexfl" / "engine" / "transports" / "flower_compat.py",
    ROOT / "clients" / "device" / "supernode.py",
}


def sources(part: str) -> list[Path]:
    path = ROOT / part.replace(".", "/")
    return sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


FILES = [
    pytest.param(part, path, id=str(path.relative_to(ROOT)))
    for part in sorted(OURS)
    for path in sources(part)
]


def imports(path: Path) -> Iterator[str]:
    """Absolute names of the modules that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


def attributes(path: Path) -> Iterator[str]:
    """Dotted names that a file uses, such as np.random.default_rng."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def top(module: str) -> str:
    return module.partition(".")[0]


def part_of(module: str) -> str | None:
    """Which of our parts a module belongs to; one that does not exist is no part either."""
    return next((part for part in OURS if module == part or module.startswith(f"{part}.")), None)


def test_every_part_is_here() -> None:
    assert all(sources(part) for part in OURS)
    assert len(FILES) > 30


@pytest.mark.parametrize(("part", "path"), FILES)
def test_parts_use_only_the_parts_below_them(part: str, path: Path) -> None:
    used = {part_of(module) for module in imports(path)} - {None}
    assert used <= ALLOWED[part] | {part}


@pytest.mark.parametrize("path", sources("strategies"), ids=lambda path: path.name)
def test_strategies_need_only_numpy_and_flower(path: Path) -> None:
    used = {top(module) for module in imports(path)} - sys.stdlib_module_names
    assert used <= {"numpy", "flwr", "strategies", "flexfl"}


@pytest.mark.parametrize("part", sorted(GROUND))
def test_the_ground_needs_only_numpy(part: str) -> None:
    for path in sources(part):
        used = {top(module) for module in imports(path)} - sys.stdlib_module_names
        assert used <= {"numpy", "flexfl"}


@pytest.mark.parametrize(("part", "path"), FILES)
def test_flowers_unstable_modules_stand_in_one_file_of_each_side(part: str, path: Path) -> None:
    used = {module for module in imports(path) if top(module) == "flwr"}
    if path not in UNSTABLE:
        assert used <= FLOWER


@pytest.mark.parametrize(("part", "path"), FILES)
def test_nothing_is_pickled_and_no_global_random_state_is_used(part: str, path: Path) -> None:
    modules = set(imports(path))
    assert not {top(module) for module in modules} & {
        "pickle",
        "cloudpickle",
        "dill",
        "joblib",
        "marshal",
        "random",
        "shelve",
    }
    assert "allow_pickle" not in path.read_text(encoding="utf-8")
    used = set(attributes(path))
    assert not used & {"torch.save", "torch.load", "torch.manual_seed", "torch.seed"}
    drawn = {match[1] for match in map(re.compile(r"(?:np|numpy)\.random\.(\w+)").match, used) if match}
    assert drawn <= {"default_rng", "Generator", "SeedSequence", "Philox", "PCG64"}
    assert "default_rng()" not in path.read_text(encoding="utf-8")  # without a seed
    assert not {module for module in modules if module.startswith("numpy.random")}


@pytest.mark.parametrize("path", sorted((ROOT / "flexfl").glob("*.py")), ids=lambda path: path.name)
def test_nothing_is_unpickled_at_the_top_either(path: Path) -> None:
    """The modules that belong to no part, such as flexfl.report."""
    test_nothing_is_pickled_and_no_global_random_state_is_used("flexfl", path)


@pytest.mark.parametrize("modules", ["strategies, traces", "flexfl.cli.rehearsal"])
def test_neither_a_strategy_nor_the_driver_of_a_comparison_loads_torch(modules: str) -> None:
    code = f"import sys, {modules}; print(*{{'torch', 'ray', 'sklearn'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
