"""Nothing is ever unpickled, but by one reader that can make nothing: a walk over all our code."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("ccfl_jax", "experiments", "tests")
FILES = sorted(path for room in ROOMS for path in ROOT.glob(f"{room}/**/*.py"))
# Modules that make any objects, and so run any code, that a file asks for.
UNSAFE = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "jsonpickle"}
UNSAFE |= {"marshal", "shelve", "yaml"}
# The one exception: the reader of FedScale's files, and what writes some to test it.
READER = "ccfl_jax/pickles.py"
ADMITTED = {
    READER: {"pickle.Unpickler", "pickle.UnpicklingError"},
    "ccfl_jax/trace_samples.py": {"pickle.dumps"},
    "tests/test_pickles.py": {"pickle.dumps"},
    "tests/test_traces.py": {"pickle.dumps"},
}
# Functions that unpickle unless they are told not to.
TOLD = {
    "np.load": ("allow_pickle", "False"),
    "numpy.load": ("allow_pickle", "False"),
    "jnp.load": ("allow_pickle", "False"),
    "np.lib.format.read_array": ("allow_pickle", "False"),
    "torch.load": ("weights_only", "True"),
}


def complaints(source, admitted=()):
    """What in `source` could unpickle something; `admitted` may be imported by name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name for name in names if name not in admitted]
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
    admitted = ADMITTED.get(path.relative_to(ROOT).as_posix(), ())
    assert not list(complaints(path.read_text(), admitted))


def test_the_admitted_reader_looks_nothing_up():
    """Unpickler is a base class and nothing else, and what looks names up in it only refuses."""
    tree = ast.parse((ROOT / READER).read_text())
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.bases]
    (reader,) = [node for node in classes if ast.unparse(node.bases[0]) == "Unpickler"]
    used = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    assert used.count("Unpickler") == 1 and used.count(reader.name) == 1
    methods = {node.name: node for node in reader.body if isinstance(node, ast.FunctionDef)}
    assert methods.keys() == {"find_class", "persistent_load"}
    assert len(reader.body) == 3  # and the docstring
    for method in methods.values():
        (statement,) = method.body
        assert isinstance(statement, ast.Raise)
        assert ast.unparse(statement.exc.func) == "UnpicklingError"


def test_what_is_admitted_is_admitted_there_alone():
    source = "from pickle import Unpickler, UnpicklingError"
    assert len(list(complaints(source))) == 2
    assert not list(complaints(source, ADMITTED[READER]))
    for other in (
        "import pickle",
        "from pickle import loads",
        "from pickle import load, Unpickler",
    ):
        assert len(list(complaints(other, ADMITTED[READER]))) == 1
    assert all((ROOT / name).is_file() for name in ADMITTED)


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
