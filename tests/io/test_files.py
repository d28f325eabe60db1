"""ccfl_jax/folder.py: one process a folder, whole files, nothing of anybody else's removed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccfl_jax.io import files as folders
from ccfl_jax.io import folder_lock


def test_check_unused(tmp_path):
    folders.check_unused(tmp_path)
    folders.check_unused(tmp_path / "new")
    (tmp_path / folders.LOCK).touch()  # of a process that is gone
    folders.check_unused(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match=r"expected a new or an, found a folder with content"):
        folders.check_unused(tmp_path)
    with pytest.raises(FileExistsError, match=r"file: found a file"):
        folders.check_unused(tmp_path / "file")


def test_only_what_is_ones_own_is_overwritten(tmp_path):
    for name in ("a.json", "a.json.tmp", "lock"):
        (tmp_path / name).touch()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "inside").touch()
    folders.check_unused(tmp_path, ("a.json", "kept"))
    with pytest.raises(
        FileExistsError, match=r"expected to overwrite a folder of a.json, found kept"
    ):
        folders.check_unused(tmp_path, ("a.json",))
    folders.clear(tmp_path, ("a.json",))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "lock"]
    (tmp_path / "lock").unlink()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (tmp_path / "linked").symlink_to(outside)
    folders.clear(tmp_path, ("kept", "linked"))
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert (outside / "precious").exists()


def _other(code, *args):
    return subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys, os\nfrom ccfl_jax.io import files, folder_lock\n{code}",
            *args,
        ],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )


def test_two_processes_cannot_have_one_folder(tmp_path):
    lock = folder_lock.lock(tmp_path)
    assert lock.left_by is None
    take = "folder_lock.lock(sys.argv[1])"
    refused = _other(take, str(tmp_path))
    assert refused.returncode == 1
    assert f"{tmp_path}: found in use by process {os.getpid()} on " in refused.stderr
    lock.release()
    lock.release()  # twice does nothing
    assert list(tmp_path.iterdir()) == []
    assert _other(take, str(tmp_path)).returncode == 0


def test_a_lock_left_by_a_process_that_is_gone_is_noticed(tmp_path):
    gone = _other(
        "folder_lock.lock(sys.argv[1]); print(os.getpid(), flush=True); os._exit(9)", str(tmp_path)
    )
    assert (tmp_path / folders.LOCK).exists()
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
    folders.replace_file(path, "old")

    def half(file):
        file.write(b"ne")
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        folders.write_whole(path, half)
    assert path.read_text() == "old"
    folders.replace_file(path, "new")
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
    said = _other(_LIMITED, str(path)).stdout
    assert path.read_text() == "line 0...\nline 1...\n"
    assert len(said.splitlines()) == 7


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False,
       allow_infinity=False) | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(),
       inner), max_leaves=10))  # fmt: skip
def test_json_comes_back(value):
    assert folders.as_json(json.dumps(value).encode(), "file") == value


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b"NaN", b"[Infinity]", b"[" * 100_000, b"1 2", b'{"a": -Infinity}']
)
def test_what_is_no_strict_json_is_refused_in_a_line(data):
    with pytest.raises(ValueError, match=r"^a/b.json: not readable as JSON \(") as caught:
        folders.as_json(data, Path("a/b.json"))
    assert len(str(caught.value).splitlines()) == 1
