"""io/files.py, io/folder_lock.py: one process a folder, whole files, only its own removed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusal import refused

from ccfl_jax.io import files, folder_lock


def test_check_unused(tmp_path):
    file = tmp_path / "file"
    files.check_unused(tmp_path)
    files.check_unused(tmp_path / "new")
    (tmp_path / files.LOCK).touch()  # of a process that is gone
    files.check_unused(tmp_path)
    file.touch()
    message = f"{tmp_path}: expected a new or an empty folder (...), found content"
    refused(message, files.check_unused, tmp_path, kind=FileExistsError)
    message = f"{file}: expected a new or an empty folder, found a file"
    refused(message, files.check_unused, file, kind=FileExistsError)


def test_only_what_is_ones_own_is_overwritten(tmp_path):
    for name in ("a.json", "a.json.tmp", "lock"):
        (tmp_path / name).touch()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "inside").touch()
    files.check_unused(tmp_path, ("a.json", "kept"))
    message = f"{tmp_path}: expected only a.json in a folder to overwrite, found kept"
    refused(message, files.check_unused, tmp_path, ("a.json",), kind=FileExistsError)
    files.clear(tmp_path, ("a.json",))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "lock"]
    (tmp_path / "lock").unlink()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (tmp_path / "linked").symlink_to(outside)
    files.clear(tmp_path, ("kept", "linked"))
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert (outside / "precious").exists()


# Without the package's __init__, which loads JAX.
_ALONE = """
import os, sys, types
sys.modules["ccfl_jax"] = types.ModuleType("ccfl_jax")
sys.modules["ccfl_jax"].__path__ = ["ccfl_jax"]
from ccfl_jax.io import files, folder_lock
"""


def _other(code, path):
    command = [sys.executable, "-c", _ALONE + code, str(path)]
    return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])


def test_two_processes_cannot_have_one_folder(tmp_path):
    lock = folder_lock.lock(tmp_path)
    assert lock.left_by is None
    take = "folder_lock.lock(sys.argv[1])"
    second = _other(take, tmp_path)
    message = f"{tmp_path}: expected one process at a time, found in use by process {os.getpid()}"
    assert second.returncode == 1 and message in second.stderr
    lock.release()
    lock.release()  # twice does nothing
    assert list(tmp_path.iterdir()) == []


def test_a_lock_left_by_a_process_that_is_gone_is_noticed(tmp_path):
    take = "folder_lock.lock(sys.argv[1]); print(os.getpid(), flush=True); os._exit(9)"
    gone = _other(take, tmp_path)
    assert gone.returncode == 9 and (tmp_path / files.LOCK).exists()
    lock = folder_lock.lock(tmp_path)
    assert lock.left_by.startswith(f"process {gone.stdout.strip()} on ")
    lock.release()


def test_a_folder_made_for_a_lock_goes_with_it(tmp_path):
    folder_lock.lock(tmp_path / "a" / "b").release()
    assert not (tmp_path / "a").exists()
    lock = folder_lock.lock(tmp_path / "a")
    (tmp_path / "a" / "file").touch()
    lock.release()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["file"]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    files.replace_file(path, "old")

    def half(file):
        file.write(b"ne")
        raise OSError("no room")

    refused("no room", files.write_whole, path, half, kind=OSError)
    assert path.read_text() == "old"
    files.replace_file(path, "new")
    assert path.read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


_LIMITED = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (25, 25))
for number in range(9):
    try:
        files.append_line(sys.argv[1], f"line {number}...")
    except OSError as error:
        print(error)
"""


def test_a_line_is_added_whole_or_not_at_all(tmp_path):
    """Lines of ten bytes in a file that may have 25: the third does not fit, nor a part of it."""
    path = tmp_path / "lines"
    said = _other(_LIMITED, path).stdout
    assert path.read_text() == "line 0...\nline 1...\n"
    assert len(said.splitlines()) == 7


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.recursive(st.none() | st.booleans() | st.integers() | FINITE | st.text(),
       lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=10))  # fmt: skip
def test_json_comes_back(value):
    assert files.as_json(json.dumps(value).encode(), "file") == value


@pytest.mark.parametrize(("data", "message"), [
    *((data, "expected JSON, found ...") for data in (b"", b"{", b"\xff", b"[" * 100_000, b"1 2")),
    (b"NaN", "expected numbers, found NaN"), (b"[Infinity]", "expected numbers, found Infinity"),
    (b'{"a": -Infinity}', "expected numbers, found -Infinity"),
    (b'{"a": 1, "a": 1}', "expected each name once, found 'a' again"),
])  # fmt: skip
def test_what_is_no_strict_json_is_refused_in_a_line(data, message):
    refused(f"a/b.json: {message}", files.as_json, data, Path("a/b.json"))


def test_numbers_that_are_not_finite_where_they_are_looked_at_later():
    assert np.isnan(files.as_json(b"[NaN]", "file", nan=True)[0])
    assert files.as_json(b"-Infinity", "file", nan=True) == -np.inf
