"""Every public function and class has examples in its docstring, which run."""

import doctest
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from corpus import write
from small_runs import main

import ccfl_jax as ccfl

pytestmark = pytest.mark.usefixtures("quickly_compiled")
IMPORTED = {"ccfl": ccfl, "jax": jax, "jnp": jnp, "np": np, "optax": optax}


def public():
    """Name -> every function and class of the public modules, each once."""
    rooms = [getattr(ccfl, name) for name in ccfl.__all__]
    modules = [ccfl, *filter(inspect.ismodule, rooms), ccfl.models]
    found = {}
    for module in modules:
        own = [name for name, one in vars(module).items() if _is_own(name, one, module)]
        for name in getattr(module, "__all__", own):
            one = getattr(module, name)
            if inspect.isfunction(one) or inspect.isclass(one):
                found.setdefault(one, f"{module.__name__.rpartition('.')[2]}.{name}")
    return {name: one for one, name in found.items()}


def _is_own(name, one, module):
    return not name.startswith("_") and getattr(one, "__module__", None) == module.__name__


@pytest.fixture(scope="module")
def files(tmp_path_factory, undrawn, quickly_compiled):
    """The folder in which they run: with that of a run, and of a corpus."""
    folder = tmp_path_factory.mktemp("examples")
    assert main("--rounds=2", f"--out_dir={folder}/runs/digits") == 0
    write(folder / "stackoverflow")
    return folder


@pytest.mark.parametrize("name", public())
def test_examples_run(name, files, monkeypatch):
    monkeypatch.chdir(files)
    (found,) = doctest.DocTestFinder(recurse=False).find(public()[name], name, globs=IMPORTED)
    assert any(example.want for example in found.examples), "no example that shows a result"
    said = []
    doctest.DocTestRunner().run(found, out=said.append)
    assert not said, "".join(said)


def test_an_example_that_is_wrong_fails():
    """The runner sees a result that differs."""
    found = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert doctest.DocTestRunner().run(found, out=lambda text: None).failed == 1


def test_all_rooms_are_looked_at():
    names = {*public()}
    assert {f"systems.{name}" for name in ccfl.systems.__all__} <= names
    assert {"ccfl_jax.train", "speed.pareto", "theory.bound", "terms.told", "models.CNN"} <= names
