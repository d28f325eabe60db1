"""The code of README and of the pages beside it runs; their tables name all there is."""

import ast
import inspect
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import ccfl_jax as ccfl

README = Path(__file__).parents[1] / "README.md"
DOCS = README.parent / "docs"


def _run_example(page):
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    names = {}
    exec(compile(code, page, "exec"), names)
    return names


def test_the_example_trains(capsys):
    losses = _run_example(README)["info"].train_loss
    assert losses.shape == (200,) and losses[-20:].mean() < 0.5 * losses[:20].mean()
    assert "accuracy" in capsys.readouterr().out


def test_the_example_of_a_clock_is_a_schedule():
    """500 rounds of five uploads, started at night and staler than the history is long."""
    names = _run_example(DOCS / "clocks.md")
    schedule, log = names["schedule"], names["log"]
    assert schedule.client.shape == (500, 5) and log.counts()["used"] == 2500
    hour = (log.start / 3600 + log.client % 24) % 24
    assert ((hour >= 22) | (hour < 6)).all()
    assert schedule.staleness.max() + 1 > schedule.history_slots() > 1


def test_the_example_of_a_method_is_scaffold():
    """The same run, bit for bit, as the library's, and it learns."""
    names = _run_example(DOCS / "methods.md")
    rule, rate = ccfl.systems.scaffold(names["rate"]), names["rate"]
    made = ccfl.simulation(names["task"], ccfl.cc_fedsgd(1.0), rate, normalise="none", rule=rule)
    state = made.init(jax.random.key(0), 6, 30)
    state, _ = ccfl.run_rounds(made.round, state, names["schedule"], names["data"])
    jax.tree.map(np.testing.assert_array_equal, state.params, names["state"].params)
    assert ccfl.evaluate(names["task"], state.params, names["test"])["accuracy"] > 0.8


def test_its_table_names_every_system():
    text = README.read_text()
    assert not {name for name in ccfl.systems.__all__ if f"`{name}`" not in text}


def code_lines(function):
    """Lines of a function without its docstrings, comments and blank lines."""
    source = inspect.getsource(function)
    nodes = [
        n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.ClassDef)
    ]
    told = [n.body[0] for n in nodes if ast.get_docstring(n)]
    dropped = {k for doc in told for k in range(doc.lineno, doc.end_lineno + 1)}
    lines = (line.strip() for k, line in enumerate(source.split("\n"), 1) if k not in dropped)
    return len([line for line in lines if line and not line.startswith("#")])


def test_its_table_counts_the_lines_of_every_system():
    rows = [line.split(" | ") for line in README.read_text().splitlines() if line.count(" | ") == 5]
    found = {}
    for _, _, names, counts, *_ in rows:
        own = re.findall(r"`(\w+)`", names)
        if own and set(own) <= {*ccfl.systems.__all__}:
            found |= dict(zip(own, map(int, counts.split(", ")), strict=True))
    systems = {name: getattr(ccfl.systems, name) for name in ccfl.systems.__all__}
    assert found == {name: code_lines(one) for name, one in systems.items()}


def test_the_example_of_trials_trains():
    """A higher rate learns faster at the start; all three start from the same loss."""
    losses = _run_example(DOCS / "commands.md")["info"].train_loss
    assert losses.shape == (3, 50) and len(set(losses[:, 0])) == 1
    assert losses[0, -10:].mean() > losses[1, -10:].mean() > losses[2, -10:].mean()


def test_its_tables_name_every_data_set_model_and_experiment():
    from experiments.config import datasets
    from experiments.paper import presets

    text = (DOCS / "data.md").read_text() + (DOCS / "commands.md").read_text()
    wanted = {*datasets.DATASET_FORMS, *presets.names(), *datasets.MODELS}
    assert not {name for name in wanted if f"`{name}`" not in text}


@pytest.mark.parametrize("page", [README, *sorted(DOCS.glob("*.md"))], ids=lambda page: page.name)
def test_every_file_it_links_is_there(page):
    links = re.findall(r"\]\(([^)#\s]+)[)#]", page.read_text())
    assert links or page != README
    assert not [link for link in links if "://" not in link and not (page.parent / link).exists()]


def test_its_commands_name_presets_and_methods_that_exist():
    from experiments.config import flag, methods

    text = "".join(page.read_text() for page in (README, *DOCS.glob("*.md")))
    assert set(re.findall(r"--preset=(\w+)", text)) <= set(flag.presets())
    named = {*re.findall(r"--(?:server|method)=(\w+)", text)} - {"scaffold,"}
    assert named == {*methods.METHODS}
