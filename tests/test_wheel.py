"""The wheel, as a user has it: in an environment of its own, in a folder with nothing in it."""

import os
import subprocess
import sys
import tarfile
import venv
from functools import partial
from pathlib import Path

import pytest

import ccfl_jax

ROOT = Path(__file__).parents[1]


def run(*command, cwd):
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.check_output(command, cwd=cwd, env=env, text=True)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The programs of an environment that has the wheel and what it asks for, nothing else.

    The wheel is made of the source distribution, as it is for a release.
    """
    base = tmp_path_factory.mktemp("wheel")
    programs = base / "environment" / "bin"
    run(sys.executable, "-m", "build", f"--outdir={base}", ROOT, cwd=base)
    (source,), (wheel,) = base.glob("*.tar.gz"), base.glob("*.whl")
    run(sys.executable, "-m", "twine", "check", "--strict", source, wheel, cwd=base)
    with tarfile.open(source) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {"requirements.txt", "LICENSE", "tests/conftest.py", "experiments/README.md"} <= names
    venv.create(programs.parent, with_pip=True)
    run(programs / "python", "-m", "pip", "-q", "install", wheel, cwd=base)
    return programs


@pytest.mark.slow
def test_commands_run_from_an_empty_folder(installed, tmp_path):
    """And the library is typed, has its version, and brings no package `experiments`."""
    ccfl = partial(run, installed / "ccfl", cwd=tmp_path)
    assert "Trains one federated run" in ccfl("--help")
    out = ccfl("train", "--preset=digits", "--rounds=2", "--out_dir=run", "--compilation_cache=c")
    assert "after 2 rounds" in out and (tmp_path / "run" / "curves.png").exists()
    assert len(ccfl("reproduce", "list").splitlines()) == 13
    out = ccfl("schedule", "--preset=digits", "--rounds=20", "--file=a.npz")
    assert "20 rounds of 5 slots for 30 clients" in out and (tmp_path / "a.png").exists()
    assert "| cc_fedams | 0.02 | 2 | " in ccfl("table", "run")
    assert ccfl("report", "run", "--out=a.html") == "a.html\n"
    page = (tmp_path / "a.html").read_text()
    assert all(f"(function {name}()" in page for name in ("curves", "table", "schedule"))
    code = (
        "import ccfl_jax, importlib.metadata, importlib.resources as r, importlib.util as u\n"
        "assert ccfl_jax.__version__ == importlib.metadata.version('ccfl_jax')\n"
        "assert (r.files('ccfl_jax') / 'py.typed').is_file()\n"
        "assert not (r.files('ccfl_experiments') / 'README.md').is_file()\n"
        "assert u.find_spec('experiments') is None\n"
    )
    run(installed / "python", "-c", code, cwd=tmp_path)


def test_what_the_library_shows_is_public():
    assert {*dir(ccfl_jax)} == {*ccfl_jax.__all__, "__version__"}
    assert all(hasattr(ccfl_jax, name) for name in dir(ccfl_jax))
