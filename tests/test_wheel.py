"""The wheel, as a user has it: in an environment of its own, in a folder with nothing in it."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest

import ccfl_jax

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The programs of an environment that has the wheel and what it asks for, nothing else."""
    base = tmp_path_factory.mktemp("wheel")
    make = ["wheel", "-q", "--no-deps", f"--wheel-dir={base}", str(ROOT)]
    subprocess.run([sys.executable, "-m", "pip", *make], check=True, cwd=base)
    (wheel,) = base.glob("*.whl")
    venv.create(base / "environment", with_pip=True)
    programs = base / "environment" / "bin"
    subprocess.run([programs / "python", "-m", "pip", "install", "-q", str(wheel)], check=True)
    return programs


@pytest.mark.slow
def test_commands_run_from_an_empty_folder(installed, tmp_path):
    def ccfl(*args):
        return subprocess.run(
            [installed / "ccfl", *args], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    assert "Trains one federated run" in ccfl("--help")
    cache = f"--compilation_cache={tmp_path / 'cache'}"
    out = ccfl("train", "--preset=digits", "--rounds=2", "--out_dir=run", cache)
    assert "after 2 rounds" in out and (tmp_path / "run" / "curves.png").exists()
    assert len(ccfl("reproduce", "list").splitlines()) == 13
    out = ccfl("schedule", "--preset=digits", "--rounds=20", "--file=a.npz")
    assert "20 rounds of 5 slots for 30 clients" in out and (tmp_path / "a.png").exists()
    assert "| cc_fedams | 0.02 | 2 | " in ccfl("table", "run")


@pytest.mark.slow
def test_the_library_is_typed_and_has_its_version(installed, tmp_path):
    code = (
        "import ccfl_jax, importlib.metadata, importlib.resources as r, importlib.util as u\n"
        "assert ccfl_jax.__version__ == importlib.metadata.version('ccfl_jax')\n"
        "assert (r.files('ccfl_jax') / 'py.typed').is_file()\n"
        "assert u.find_spec('experiments') is None\n"
    )
    subprocess.run([installed / "python", "-c", code], cwd=tmp_path, check=True)


def test_what_the_library_shows_is_public():
    assert {*dir(ccfl_jax)} == {*ccfl_jax.__all__, "__version__"}
    assert all(hasattr(ccfl_jax, name) for name in dir(ccfl_jax))
