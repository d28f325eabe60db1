"""Several processes, for real: two of them on this machine, one device each."""

import socket
import subprocess
import time

import pytest
from small_runs import main, rows_of, start


def start_two(folder, *args):
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port = listener.getsockname()[1]
    args = ["--eval_every=3", f"--out_dir={folder}", f"--coordinator=localhost:{port}", *args]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return [start(*args, "--num_processes=2", f"--process_id={k}", **pipes) for k in (0, 1)]


@pytest.mark.slow
def test_two_processes_make_the_run_of_one_and_one_of_them_writes(tmp_path):
    pair = start_two(tmp_path / "two", "--rounds=6")
    said = [process.communicate(timeout=180)[0] for process in pair]
    assert [process.returncode for process in pair] == [0, 0], said
    assert "2 x cpu" in said[0] and ["curves" in one for one in said] == [True, False]
    assert main("--rounds=6", "--eval_every=3", f"--out_dir={tmp_path / 'one'}") == 0
    one, two = rows_of(tmp_path / "one"), rows_of(tmp_path / "two")
    assert [row["round"] for row in one] == [row["round"] for row in two] == [0, 3, 6]
    for a, b in zip(one, two, strict=True):
        assert a["samples"] == b["samples"] and a["participants"] == b["participants"]
        assert a["test_loss"] == pytest.approx(b["test_loss"], rel=1e-6)


@pytest.mark.slow
def test_a_dead_process_ends_the_run_within_a_minute(tmp_path):
    folder = tmp_path / "dead"
    survivor, victim = start_two(folder, "--rounds=1000000")
    try:
        limit = time.monotonic() + 180
        while not (folder / "metrics.jsonl").exists() or len(rows_of(folder)) < 2:
            assert survivor.poll() is None and time.monotonic() < limit
            time.sleep(0.2)
        victim.kill()
        assert survivor.wait(timeout=60) != 0
    finally:
        for process in (survivor, victim):
            process.kill()
            process.communicate()
