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
    "ccfl_jax": ["checks", "theory io", "data algorithm", "models schedules",
                 "clock engine systems", "runs"],
    "experiments": ["config", "figures corpora", "training", "sweeps schedules benchmarks",
                    "paper arena pages", "commands"],
}  # fmt: skip


def modules(package):
    """Dotted name -> every file of a package but those that only name what is public."""
    paths = [path for path in (ROOT / package).rglob("*.py") if path.name != "__init__.py"]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}


def imported(path):
    """The dotted names that a file imports, relative ones resolved."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join(filter(None, [*base, node.module]))
            yield from (f"{stem}.{alias.name}" for alias in node.names)


def room(name):
    """The folder of a dotted name in its package, and its row; a command is in no folder."""
    package, first, *_ = [*name.split("."), ""]
    row_of = {one: number for number, row in enumerate(ROWS[package]) for one in row.split()}
    place = first if first in row_of or package == "ccfl_jax" else "commands"
    return place, row_of[place]


@pytest.mark.parametrize("package", ROWS)
def test_imports_point_to_a_lower_row(package):
    for own, path in modules(package).items():
        here, row = room(own)
        for name in imported(path):
            top = name.split(".")[0]
            assert not (package == "ccfl_jax" and top in ("absl", "experiments")), path
            if top == package:
                there, other = room(name)
                assert there == here or other < row, f"{own} imports {name}"


@pytest.mark.parametrize("package", ROWS)
def test_no_files_import_each_other_in_a_circle(package):
    files, graph = modules(package), {}
    for own, path in files.items():
        names = [*imported(path)]
        graph[own] = files.keys() & {*names, *(name.rpartition(".")[0] for name in names)}
    assert [*TopologicalSorter(graph).static_order()]


def test_the_walk_sees_imports():
    names = set(imported(ROOT / "ccfl_jax/engine/rounds.py"))
    assert "ccfl_jax.schedules.schedule.Schedule" in names and "jax" in names
    names = set(imported(ROOT / "experiments/training/run.py"))
    assert "experiments.config.run_flags.Config" in names


def test_importing_the_library_brings_nothing_it_does_not_need():
    heavy = {"tensorflow_datasets", "sklearn", "matplotlib", "dp_accounting", "pyarrow", "PIL"}
    heavy |= {"scipy", "orbax", "tensorstore", "flax.nnx"}
    code = f"import sys, ccfl_jax; sys.exit(not {heavy}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def body_lines(function):
    """Lines of a function without its signature and its docstring."""
    first = function.body[0]
    before = first.end_lineno if ast.get_docstring(function) else first.lineno - 1
    return function.end_lineno - before


def example_lines(doc):
    """Lines that a docstring has because of its examples, the last of its sections."""
    before, head, examples = doc.partition("\n\nExamples:")
    moved = "\n\n" not in before  # the quotes that close a paragraph alone stand on its last line
    return (head + examples).count("\n") + moved if head else 0


def file_lines(path):
    """Lines of a file without the examples in its docstrings."""
    text = path.read_text()
    kinds = ast.FunctionDef | ast.ClassDef
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    return text.count("\n") - sum(example_lines(ast.get_docstring(node) or "") for node in nodes)


def test_lines_are_counted_without_examples(tmp_path):
    body = "    return 1\n"
    plain = (
        'def a():\n    """One."""\n' + body + 'def b():\n    """Two.\n\n    More.\n    """\n' + body
    )
    shown = "\n\n    Examples:\n        >>> a()\n        1\n    "
    longer = plain.replace("One.", "One." + shown).replace("More.\n    ", "More." + shown)
    assert longer.count("\n") - plain.count("\n") == 9
    for name, text in (("plain.py", plain), ("longer.py", longer)):
        (tmp_path / name).write_text(text)
        assert file_lines(tmp_path / name) == plain.count("\n")


def test_files_and_functions_are_short():
    files = [path for room in (*ROWS, "tests") for path in (ROOT / room).rglob("*.py")]
    assert not [path for path in files if file_lines(path) > 300]
    nodes = [(path, node) for path in files for node in ast.walk(ast.parse(path.read_text()))]
    functions = [(path, node) for path, node in nodes if isinstance(node, ast.FunctionDef)]
    assert not [(path, node.name) for path, node in functions if body_lines(node) > 40]
