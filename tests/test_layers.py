"""The rooms: an import may only point to a lower row, and nothing heavy comes in by itself."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "ccfl_jax"
ROWS = {
    "checks": 0,
    "types": 0,
    "folder": 1,
    "tree": 1,
    "batches": 1,
    "changes": 1,
    "layout": 1,
    "npz": 1,
    "pickles": 1,
    "plan": 1,
    "server": 2,
    "local": 2,
    "history": 2,
    "aggregate": 2,
    "array_file": 2,
    "config_file": 2,
    "schedule": 2,
    "speed": 2,
    "theory": 2,
    "data": 2,
    "models": 2,
    "windows": 2,
    "availability": 3,
    "cohorts": 3,
    "draws": 3,
    "state": 3,
    "event_log": 3,
    "pool": 3,
    "tasks": 3,
    "stream": 3,
    "traces": 3,
    "batching": 4,
    "clock": 4,
    "rounds": 5,
    "simulate": 6,
    "simulation": 6,
    "checkpoints": 6,
    "record": 6,
    "trials": 7,
}


def modules():
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def room(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(path):
    """The dotted names that a file imports, relative ones resolved."""
    package = ["ccfl_jax", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{stem}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_to_a_lower_row(path):
    assert room(path) in ROWS, f"{path.name} stands in no row of WORKSPACE.md"
    for name in imported(path):
        parts = name.split(".")
        assert parts[0] not in ("absl", "experiments"), f"{path.name} imports {name}"
        if parts[0] != "ccfl_jax":
            continue
        assert len(parts) > 1 and parts[1] in ROWS, f"{path.name} imports {name}"
        inside = parts[1] == room(path)
        assert inside or ROWS[parts[1]] < ROWS[room(path)], f"{path.name} imports {name}"


def test_the_walk_sees_imports():
    names = set(imported(PACKAGE / "rounds.py"))
    assert "ccfl_jax.schedule.Schedule" in names and "jax" in names


@pytest.mark.parametrize("heavy", ["tensorflow_datasets", "sklearn", "matplotlib"])
def test_importing_the_library_brings_nothing_it_does_not_need(heavy):
    code = f"import ccfl_jax, sys; sys.exit({heavy!r} in sys.modules)"
    blocked = f"import sys; sys.modules[{heavy!r}] = None; import ccfl_jax"
    assert subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent).returncode == 0
    assert subprocess.run([sys.executable, "-c", blocked], cwd=PACKAGE.parent).returncode == 0
