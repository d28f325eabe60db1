"""Every public function and class has examples in its docstring, which run."""

import doctest
import inspect
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pyarrow
import pyarrow.ipc
import pytest
from corpus import write
from public_names import MODULES, public
from small_runs import main

import ccfl_jax as ccfl
from ccfl_jax.data.readers.tf_example import encode_example

pytestmark = pytest.mark.usefixtures("quickly_compiled")
PREPARED_ELSEWHERE = ccfl.data.load_tfds  # its files take TFDS and seconds to make
IMPORTED = {"ccfl": ccfl, "jax": jax, "jnp": jnp, "np": np, "optax": optax}


def every():
    """Name -> every function and class of the public modules, each once."""
    found = {}
    for module in (ccfl, *MODULES):
        for name, one in public(module).items():
            if (inspect.isfunction(one) or inspect.isclass(one)) and one is not PREPARED_ELSEWHERE:
                found.setdefault(one, f"{module.__name__.rpartition('.')[2]}.{name}")
    return {name: one for one, name in found.items()}


@pytest.fixture(scope="module")
def files(tmp_path_factory, undrawn, quickly_compiled):
    """The folder in which they run, with what they read: a run's folder, published files."""
    folder = tmp_path_factory.mktemp("examples")
    assert main("--rounds=2", f"--out_dir={folder}/runs/digits") == 0
    write(folder / "stackoverflow")
    role = encode_example({"snippets": [b"But soft! What light?"]})
    rows = [(part, "ROMEO", role) for part in ("train", "test")]
    write(folder / "shakespeare", rows, name="shakespeare")
    save_to_disk(folder / "dataset")
    return folder


def save_to_disk(folder):
    """As `datasets.DatasetDict` does: a stream of each part, named in state.json."""
    columns = {"pixels": [[0.0, 1.0], [0.5, 0.5]], "label": [1, 0], "writer": ["b", "a"]}
    table = pyarrow.table(columns)
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        with pyarrow.ipc.new_stream(folder / part / "data.arrow", table.schema) as stream:
            stream.write_table(table)
        state = {"_data_files": [{"filename": "data.arrow"}]}
        (folder / part / "state.json").write_text(json.dumps(state))


@pytest.mark.parametrize("name", every())
def test_examples_run(name, files, monkeypatch):
    monkeypatch.chdir(files)
    (found,) = doctest.DocTestFinder(recurse=False).find(every()[name], name, globs=IMPORTED)
    assert any(example.want for example in found.examples), "no example that shows a result"
    said = []
    doctest.DocTestRunner().run(found, out=said.append)
    assert not said, "".join(said)


def test_an_example_that_is_wrong_fails():
    """The runner sees a result that differs."""
    found = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert doctest.DocTestRunner().run(found, out=lambda text: None).failed == 1


def test_all_rooms_are_looked_at():
    names = {*every()}
    assert {f"systems.{name}" for name in ccfl.systems.__all__} <= names
    assert {
        "ccfl_jax.train",
        "data.load_leaf",
        "speed.pareto",
        "theory.bound",
        "terms.told",
        "models.CNN",
    } <= names
