"""Several processes, for real: two of them on this machine, one device each."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ARGS = [
    "--dataset=digits",
    "--model=logistic",
    "--num_clients=12",
    "--server_lr=0.1",
    "--devices=1",
    "--compilation_cache=off",
    "--eval_every=3",
]


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def start(folder, *args):
    return subprocess.Popen(
        [sys.executable, "-m", "experiments.train", *ARGS, f"--out_dir={folder}", *args],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )


def start_two(folder, *args):
    together = [f"--coordinator=localhost:{free_port()}", "--num_processes=2", *args]
    return [start(folder, *together, f"--process_id={k}") for k in (0, 1)]


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_two_processes_make_the_run_of_one_and_one_of_them_writes(tmp_path):
    pair = start_two(tmp_path / "two", "--rounds=6")
    said = [process.communicate(timeout=180)[0] for process in pair]
    assert [process.returncode for process in pair] == [0, 0], said
    assert "2 x cpu" in said[0] and "curves" in said[0]
    assert "curves" not in said[1]
    alone = start(tmp_path / "one", "--rounds=6")
    assert alone.wait(timeout=180) == 0
    one, two = rows(tmp_path / "one"), rows(tmp_path / "two")
    assert [row["round"] for row in one] == [row["round"] for row in two] == [0, 3, 6]
    for a, b in zip(one, two, strict=True):
        assert a["samples"] == b["samples"] and a["participants"] == b["participants"]
        assert a["test_loss"] == pytest.approx(b["test_loss"], rel=1e-6)


def test_a_dead_process_ends_the_run_within_a_minute(tmp_path):
    folder = tmp_path / "dead"
    survivor, victim = start_two(folder, "--rounds=1000000")
    try:
        limit = time.monotonic() + 180
        while not (folder / "metrics.jsonl").exists() or len(rows(folder)) < 2:
            assert survivor.poll() is None and time.monotonic() < limit
            time.sleep(0.2)
        victim.kill()
        assert survivor.wait(timeout=60) != 0
    finally:
        for process in (survivor, victim):
            process.kill()
            process.communicate()
