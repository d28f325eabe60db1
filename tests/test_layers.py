"""The rooms: an import may only point to a lower row, and nothing heavy comes in by itself."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Packages of one row do not import each other; within one its files have no cycle.
ROWS = {
    "ccfl_jax": [
        ["checks"],
        ["theory", "io", "data", "algorithm"],
        ["models", "schedules"],
        ["clock", "engine"],
        ["runs"],
    ],
    "experiments": [
        ["config"],
        ["figures", "corpora"],
        ["training"],
        ["sweeps", "schedules", "benchmarks"],
        ["paper"],
        ["commands"],
    ],
}


def modules(package):
    """Every file of a package, but those that only name what is public."""
    return [path for path in sorted((ROOT / package).rglob("*.py")) if path.name != "__init__.py"]


def dotted(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imported(path):
    """The dotted names that a file imports, relative ones resolved."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{stem}.{alias.name}" for alias in node.names)


def room(name):
    """The package of a dotted name, and the folder in it; a command is in no folder."""
    package, _, rest = name.partition(".")
    first = rest.split(".")[0]
    known = {own for row in ROWS[package] for own in row}
    return package, first if first in known or package == "ccfl_jax" else "commands"


def row(place):
    package, name = place
    return next(k for k, names in enumerate(ROWS[package]) if name in names)


@pytest.mark.parametrize("package", ROWS)
def test_imports_point_to_a_lower_row(package):
    for path in modules(package):
        here = room(dotted(path))
        for name in imported(path):
            if name.split(".")[0] == "ccfl_jax" and package == "experiments":
                continue
            top = name.split(".")[0]
            assert not (package == "ccfl_jax" and top in ("absl", "experiments")), path
            if top == package:
                there = room(name)
                assert there == here or row(there) < row(here), f"{dotted(path)} imports {name}"


@pytest.mark.parametrize("package", ROWS)
def test_no_files_import_each_other_in_a_circle(package):
    files = {dotted(path): path for path in modules(package)}
    graph = {}
    for name, path in files.items():
        found = ({one, one.rpartition(".")[0]} & files.keys() for one in imported(path))
        graph[name] = {other for names in found for other in names}
    assert [*TopologicalSorter(graph).static_order()]


def test_the_walk_sees_imports():
    names = set(imported(ROOT / "ccfl_jax/engine/rounds.py"))
    assert "ccfl_jax.schedules.schedule.Schedule" in names and "jax" in names
    names = set(imported(ROOT / "experiments/training/run.py"))
    assert "experiments.config.run_flags.Config" in names


@pytest.mark.parametrize(
    "code",
    [
        "import ccfl_jax; sys.exit(not heavy.isdisjoint(sys.modules))",
        "sys.modules.update(dict.fromkeys(heavy)); import ccfl_jax",  # None: no import of it works
    ],
)
def test_importing_the_library_brings_nothing_it_does_not_need(code):
    head = "import sys; heavy = {'tensorflow_datasets', 'sklearn', 'matplotlib'}; "
    assert subprocess.run([sys.executable, "-c", head + code], cwd=ROOT).returncode == 0


def body_lines(function):
    """Lines of a function without its signature and its docstring."""
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return function.end_lineno - first.end_lineno
    return function.end_lineno - first.lineno + 1


def test_files_and_functions_are_short():
    files = [path for room in (*ROWS, "tests") for path in (ROOT / room).rglob("*.py")]
    texts = {path.relative_to(ROOT): path.read_text() for path in files}
    assert not [path for path, text in texts.items() if text.count("\n") > 300]
    assert not [
        f"{path}: {node.name}"
        for path, text in texts.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and body_lines(node) > 40
    ]
