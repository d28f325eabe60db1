"""Nothing is ever unpickled: a walk over all our code."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("ccfl_jax", "experiments", "tests")
FILES = sorted(path for room in ROOMS for path in ROOT.glob(f"{room}/**/*.py"))
# Modules that make any objects, and so run any code, that a file asks for.
UNSAFE = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "jsonpickle"}
UNSAFE |= {"marshal", "shelve", "yaml"}
# Functions that unpickle unless they are told not to.
TOLD = {
    "np.load": ("allow_pickle", "False"),
    "numpy.load": ("allow_pickle", "False"),
    "jnp.load": ("allow_pickle", "False"),
    "np.lib.format.read_array": ("allow_pickle", "False"),
    "torch.load": ("weights_only", "True"),
}


def complaints(source):
    """What in `source` could unpickle something."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call):
            names = [str(word.value) for word in node.args if isinstance(word, ast.Constant)]
            names = names if ast.unparse(node.func).endswith("import_module") else []
            function = ast.unparse(node.func)
            told = {(word.arg, ast.unparse(word.value)) for word in node.keywords}
            safe = function not in TOLD or TOLD[function] in told
            if function.endswith("read_pickle") or not safe:
                yield f"line {node.lineno} calls {function}"
        else:
            continue
        for name in names:
            if UNSAFE & {*name.split(".")} or name in TOLD:
                yield f"line {node.lineno} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_unpickled(path):
    assert not list(complaints(path.read_text()))


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import os, pickle as p",
        "from pickle import loads",
        "def f():\n    from joblib import load",
        "import dill.source",
        "from sklearn.externals import joblib",
        "import shelve",
        "import marshal",
        "importlib.import_module('pickle')",
        "import numpy as np\nnp.load('a.npz')",
        "with np.load('a.npz', allow_pickle=True) as file:\n    pass",
        "np.load('a.npz', allow_pickle=flag)",
        "np.lib.format.read_array(file)",
        "from numpy import load",
        "pd.read_pickle('a')",
        "torch.load('a')",
    ],
)
def test_the_walk_sees(source):
    assert list(complaints(source))


@pytest.mark.parametrize(
    "source",
    [
        "np.load('a.npz', allow_pickle=False)",
        "torch.load('a', weights_only=True)",
        "json.load(file)",
        "Schedule.load('a.npz')",
    ],
)
def test_the_walk_lets_through(source):
    assert not list(complaints(source))
