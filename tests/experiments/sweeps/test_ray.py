"""Sweeps and comparisons on a real local cluster of Ray: killed, stopped, and the same results."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_runs import ROOT, SMALL, without_clocks

from experiments.sweeps import results

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undrawn")]

ROUNDS = ["--rounds=2000", "--eval_every=500", "--checkpoint_every=100", "--noprogress"]
VARY = "--vary=server=cc_fedsgd,cc_fedams server_lr=0.1 seed=0,1"


def start(folder):
    """A sweep of two workers as a process group of its own."""
    words = [*SMALL, *ROUNDS, VARY, f"--out_dir={folder}", "--cluster=local:2"]
    command = [sys.executable, "-m", "experiments.sweep", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, start_new_session=True, **pipes)


def wait_for(condition, process):
    until = time.monotonic() + 120
    while not condition():
        assert process.poll() is None and time.monotonic() < until, process.communicate()
        time.sleep(0.05)


def saved(folder):
    """Each unfinished trial's newest checkpoint after round 0."""
    rounds = [(path.parts[-3], int(path.name)) for path in folder.glob("underway/*/checkpoints/*0")]
    return {name: number for name, number in sorted(rounds) if number > 0}


def workers_of(driver):
    """The processes of Ray's workers that a command started."""
    found, parents = [], {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            stat, words = (path / "stat").read_text(), (path / "cmdline").read_text()
        except OSError:
            continue  # it ended
        parents[int(path.name)] = int(stat.rpartition(")")[2].split()[1])
        found += [int(path.name)] if words.startswith("ray::Worker") else []
    return [number for number in found if parents[parents[number]] == driver]


def files(folder):
    """Everything in a sweep's folder, without clocks, and the devices that a worker has one of."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".csv":
            found[name] = without_clocks(csv.DictReader(path.read_text().splitlines()))
        elif path.is_file() and name != "sweep.json":
            found[name] = json.loads(path.read_text())
            if "rows" in found[name]:
                found[name]["rows"] = without_clocks(found[name]["rows"])
                del found[name]["config"]["devices"]
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray") / "whole"
    command = [sys.executable, "-m", "experiments.sweep", *SMALL, *ROUNDS, VARY, "--devices=1"]
    subprocess.run([*command, f"--out_dir={folder}"], cwd=ROOT, check=True, capture_output=True)
    return files(folder)


def test_a_killed_workers_trial_goes_on_elsewhere_and_the_folder_is_the_same(whole, tmp_path):
    """Also while another command wants the folder."""
    folder = tmp_path / "a"
    process = start(folder)
    wait_for(lambda: len(saved(folder)) == 2, process)
    os.kill(workers_of(process.pid)[0], signal.SIGKILL)
    command = [sys.executable, "-m", "experiments.sweep", *SMALL, *ROUNDS, VARY]
    second = subprocess.run(
        [*command, f"--out_dir={folder}"], cwd=ROOT, capture_output=True, text=True
    )
    found = f"sweep: {folder}: expected one process at a time, found in use by process "
    assert second.returncode == 2 and second.stderr.startswith(found + str(process.pid))
    said, warned = process.communicate(timeout=200)
    assert process.returncode == 0 and warned.count("\n") == 1, (said, warned)
    assert warned.startswith("warning   a worker was killed, 1 trials go to another: ")
    assert said.count("trial     server=") == 4 and "workers   2, each of 1 CPU: 4 parts" in said
    assert files(folder) == whole
    rows = [row for one in results.read_all(folder) for row in one.rows if row["compile_seconds"]]
    assert sum(row["round"] > 0 for row in rows) == 1  # it went on where it was saved
    assert workers_of(process.pid) == []


def test_a_sweep_that_is_stopped_goes_on_in_one_process(whole, tmp_path):
    folder = tmp_path / "a"
    process = start(folder)
    wait_for(lambda: len(list(folder.glob("underway/*/metrics.jsonl"))) == 2, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to the workers too
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 5 and "stopped   the same command continues" in said
    kept = len(list((folder / "trials").glob("*")))
    assert kept < 4 and len(saved(folder)) + kept > 0 and not (folder / "lock").exists()
    command = [sys.executable, "-m", "experiments.sweep", "--resume", "--devices=1"]
    more = subprocess.run([*command, f"--out_dir={folder}"], cwd=ROOT, capture_output=True)
    assert more.returncode == 0
    assert files(folder) == whole


def test_a_comparison_has_the_same_table(tmp_path):
    words = ["compare", *SMALL, "--rounds=6", "--methods=fedavg", "--budget=2"]
    words += ["--seeds=2", "--noprogress"]
    code = "import sys; from experiments import compare; sys.exit(compare.main(sys.argv[1:]))"
    for name, own in (("one", "--devices=1"), ("two", "--cluster=local:2")):
        command = [sys.executable, "-c", code, *words, own, f"--out_dir={tmp_path / name}"]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    one, two = (tmp_path / name / "table.csv" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
