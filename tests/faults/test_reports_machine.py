"""The machine: cores that a job may use, what the user says to JAX, systems without locks."""

import dataclasses
import errno
import os
import subprocess
import sys

import jax
import pytest
from refusal import ended, matches, refused
from small_runs import ROOT, config_of, line, rows_of

from ccfl_jax.io import folder_lock
from experiments import train
from experiments.config.run_flags import Config
from experiments.training import devices

NO_LOCKS = "expected a file system with locks, found none: one process alone may use it"


def said_by(code, **env):
    words = [sys.executable, "-c", code]
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | env
    done = subprocess.run(words, env=env | {"PYTHONPATH": str(ROOT)}, capture_output=True,
                          text=True, timeout=120)  # fmt: skip
    return done.stdout.split() or done.stderr


ONE, MORE = "JAX_NUM_CPU_DEVICES", "XLA_FLAGS"
COUNT = "--xla_force_host_platform_device_count=3"


@pytest.mark.parametrize(("cores", "asked", "env", "expected"), [
    (1, None, {}, 1),
    (1, None, {ONE: "3"}, 3),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in [
        (1, 2, {}, 2),
        (1, 2, {ONE: "1"}, 2),
        (1, None, {MORE: COUNT}, 3),
        (1, 2, {MORE: COUNT}, 2),
        (2, None, {}, 2),
        (2, None, {ONE: "1"}, 1),
    ]),
])  # fmt: skip
def test_nf_21_devices_are_the_allotted_cores_or_what_the_user_says(cores, asked, env, expected):
    """`asked`: --devices, which comes before the variables of the user."""
    if len(os.sched_getaffinity(0)) < cores:
        pytest.skip("there are fewer cores")
    code = (
        "import os\n"
        f"os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{cores}])\n"
        "from experiments.training import devices\n"
        f"devices.make_host_devices({asked})\n"
        f"print(devices.mesh({asked}).size)\n"
    )
    assert said_by(code, **env) == [str(expected)]


@pytest.fixture
def kept(monkeypatch):
    """`kept(flag, variable)`: the folder of compiled programs, for the flag or its default."""
    before = {name: getattr(jax.config, name) for name in (
        "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    )}  # fmt: skip

    def folder(flag, variable):
        monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
        if variable is not None:
            monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", variable)
        jax.config.update("jax_compilation_cache_dir", variable)
        default = dataclasses.replace(config_of(), compilation_cache=Config.compilation_cache)
        devices.start(config_of(f"--compilation_cache={flag}") if flag else default)
        return jax.config.jax_compilation_cache_dir

    yield folder
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.parametrize(("flag", "variable", "expected"), [
    (None, None, "~/.cache/ccfl_jax/"),
    (None, "theirs", "theirs"),
    ("ours", "theirs", "ours/"),
    ("~/.cache/ccfl_jax", "theirs", "~/.cache/ccfl_jax/"),
    ("off", None, None),
])  # fmt: skip
def test_nf_21_compiled_programs_are_kept_where_the_user_says(kept, flag, variable, expected):
    found = kept(flag, variable)
    if expected and expected.endswith("/"):  # with a folder for the processor
        assert os.path.dirname(found) == os.path.expanduser(expected[:-1])
    else:
        assert found == expected


def test_nf_23_everything_is_imported_without_fcntl():
    code = (
        "import sys\n"
        "sys.modules['fcntl'] = None\n"
        "import ccfl_jax\n"
        "from experiments import plot, reproduce, schedule, sweep, table, train\n"
        "from experiments.training import run_setup\n"
        "from experiments.sweeps import runner\n"
        "from ccfl_jax.io import folder_lock\n"
        "print(folder_lock.fcntl)\n"
    )
    assert said_by(code) == ["None"]


@pytest.fixture
def refusing(monkeypatch):
    """`refusing(number)`: locks end in this error, or with None there are none at all."""

    def made(number):
        if number is None:
            monkeypatch.setattr(folder_lock, "fcntl", None)
            return

        def flock(*args):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(folder_lock.fcntl, "flock", flock)

    return made


NAMES = ["ENOLCK", "EOPNOTSUPP", "ENOSYS", "EINVAL"]


@pytest.mark.parametrize("number", [None, *(getattr(errno, name) for name in NAMES)])
def test_nf_23_a_folder_is_used_without_a_lock_where_there_are_none(refusing, tmp_path, number):
    refusing(number)
    for left_by in (None, f"process {os.getpid()} on ..."):
        found = folder_lock.lock(tmp_path / "a")
        assert not found.is_locked and (tmp_path / "a" / "lock").exists()
        matches(str(left_by), str(found.left_by))
    found.release()
    assert [*(tmp_path / "a").iterdir()] == []


@pytest.mark.usefixtures("undrawn", "quickly_compiled")
def test_nf_23_a_run_warns_and_goes_on(refusing, tmp_path, capsys):
    """Whose name is in the lock may still be at work: nobody can tell."""
    refusing(errno.ENOLCK)
    folder, other = tmp_path / "a", "process 1 on a"
    argv = line("--rounds=2", f"--out_dir={folder}")
    assert ended(0, capsys, train.main, *argv).err == f"warning   {folder}: {NO_LOCKS}\n"
    (folder / "lock").write_text(other)
    said = ended(0, capsys, train.main, *argv, "--resume").err
    assert said == f"warning   {folder}: {NO_LOCKS}; {other} does, or ended without releasing it\n"
    assert rows_of(folder)[-1]["round"] == 2 and not (folder / "lock").exists()


def test_nf_23_other_errors_of_a_lock_are_told_with_its_file(refusing, tmp_path):
    refusing(errno.EIO)
    refused(f"{tmp_path}/lock: expected a lock, found ... Input/output error",
            folder_lock.lock, tmp_path, kind=OSError)  # fmt: skip
    refusing(errno.EWOULDBLOCK)
    refused(f"{tmp_path}: expected one process at a time, found in use by ",
            folder_lock.lock, tmp_path, kind=BlockingIOError)  # fmt: skip
