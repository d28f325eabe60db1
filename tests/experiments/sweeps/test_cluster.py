"""Trials on a cluster's workers, without Ray: what is given to whom, and what ends."""

import sys
from collections import deque
from functools import partial
from types import SimpleNamespace

import pytest
from small_runs import SMALL, without_clocks

from ccfl_jax.io.files import LOCK
from experiments import compare, reproduce, sweep
from experiments.config.sweep_flags import parse_sweep
from experiments.sweeps import (
    ray_driver,
    ray_worker,
    results,
    runner,
    trial_checkpoints,
    trial_training,
)
from experiments.sweeps.ray_worker import Part, Report, Setting
from experiments.sweeps.trial_training import Sweep

OWN = ["--rounds=4", "--eval_every=2", "--devices=1", "--compilation_cache=off", "--noprogress"]
COMMANDS = {
    "sweep": [sweep.main, "--vary=seed=0,1", "--server_lr=1"],
    "reproduce": [reproduce.main, "fig1_alpha3"],
    "compare": [compare.main],
}


def trials_of(folder, vary="server_lr=0.1,0.3 seed=0,1"):
    return parse_sweep(["sweep", *SMALL, *OWN, f"--vary={vary}", f"--out_dir={folder}"]).trials


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("value", ["local", "local:0", "2", "here:x", "ray://a:1"])
def test_a_cluster_of_another_form_is_refused(refuses, tmp_path, name, value):
    main, *words = COMMANDS[name]
    message = f"--cluster: expected auto, local:N or HOST:PORT, found '{value}'..."
    refuses(message, main, name, *words, f"--out_dir={tmp_path / 'a'}", f"--cluster={value}")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", COMMANDS)
def test_without_ray_a_line_says_what_to_install(refuses, tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "ray", None)
    main, *words = COMMANDS[name]
    message = "--cluster: expected Ray (pip install 'ccfl_jax[cluster]'), found ..."
    words += ["--dataset=digits", "--model=mlp", f"--out_dir={tmp_path / 'a'}"]
    refuses(message, main, name, *words, "--cluster=local:2")
    assert not [*tmp_path.iterdir()]


def test_trials_are_cut_into_parts_and_unfinished_ones_stay_together():
    begun = [["b", "d"], ["x"]]  # of another program
    assert trial_training.cut([*"abcde"], begun, 2) == [["b", "d"], ["a", "c"], ["e"]]
    assert trial_training.cut([*"ab"], [], 5) == [["a", "b"]]


class RayError(Exception):
    """What Ray raises."""


class RayTaskError(RayError):
    """An error of the worker's own."""

    def __init__(self, cause):
        self.cause = cause


@pytest.fixture
def hand_out(monkeypatch, tmp_path):
    """`hand_out(parts, train, start)`: the records, of workers with these functions."""

    def made(parts, train, start=lambda setting: Report(0, [], []), stop=lambda: False):
        def call(function):  # at once; what it gives comes with the reference, which is called
            def remote(*arguments):
                try:
                    value = function(*arguments)
                except RayError as error:
                    return partial(failing, error)
                return lambda: value

            return SimpleNamespace(remote=remote)

        def failing(error):
            raise error

        worker = SimpleNamespace(train=call(train), start=call(start))
        options = SimpleNamespace(options=lambda **own: SimpleNamespace(remote=lambda: worker))
        ray = SimpleNamespace(
            remote=lambda worker: options,
            wait=lambda every, timeout: (every[:1], every[1:]),
            get=lambda reference: reference(),
            kill=lambda worker: None,
            exceptions=SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError),
        )
        monkeypatch.setitem(sys.modules, "ray", ray)
        watch = SimpleNamespace(stop_requested=stop, bar=SimpleNamespace(update=rounds.append))
        config = next(iter(parts[0].members.values())).config
        setting = Setting(tmp_path, tmp_path, "", None, config, "CPU")
        own = Sweep(tmp_path, [], None, watch)
        return [*ray_driver._hand_out(deque(parts), setting, 2, own)]

    rounds = []
    made.rounds = rounds
    return made


def parts_of(folder):
    """Two parts of two trials each."""
    trials = trials_of(folder)
    names = trial_training.cut([*trials], [], 2)
    return [Part({name: trials[name] for name in own}, 3) for own in names]


def rows_of(trial):
    row = {"round": 4, "train_accuracy": 0.5, "test_accuracy": 0.5, "diverged": False}
    return results.made(trial, [row])


def test_trials_of_a_killed_worker_are_trained_by_another(hand_out, tmp_path, capsys):
    """The first one had written one of its two records."""
    parts, had = parts_of(tmp_path), []

    def train(part, stop):
        had.append([*part.members])
        if len(had) == 1:
            results.write(tmp_path, rows_of(next(iter(part.members.values()))))
            raise RayError("The actor died.\nIts process was killed.")
        return Report(8, [*map(rows_of, part.members.values())], ["warning   something"])

    done = hand_out(parts, train)
    first, second = [[*part.members] for part in parts]
    assert sorted(had) == sorted([first, second, first[1:]])
    assert sorted(one.name for one in done) == sorted([*first, *second])
    said = capsys.readouterr().err
    reason = "Its process was killed."
    assert f"warning   a worker was killed, 1 trials go to another: {reason}\n" in said
    assert said.count("warning   something\n") == 2


def test_trials_that_kill_three_workers_have_failed_and_the_others_are_done(hand_out, tmp_path):
    parts, count = parts_of(tmp_path), []
    bad = [*parts[0].members]

    def train(part, stop):
        if {*part.members} & {*bad}:
            count.append(part.killed)
            raise RayError("out of memory")
        return Report(8, [*map(rows_of, part.members.values())], [])

    done = {one.name: one for one in hand_out(parts, train)}
    assert count == [0, 1, 2] and len(done) == 4
    reason = "RuntimeError: 3 workers that trained it were killed: out of memory"
    assert [done[name].reason for name in bad] == [reason, reason]
    assert {done[name].status for name in parts[1].members} == {"finished"}
    assert all(results.exists(tmp_path, name) for name in bad)


def test_workers_that_do_not_start_end_it(hand_out, tmp_path):
    def start(setting):
        raise RayError("Traceback\nNo module named 'experiments'")

    with pytest.raises(RuntimeError, match="^--cluster: expected workers that start, found No mod"):
        hand_out(parts_of(tmp_path), None, start)


def test_an_error_of_a_worker_is_that_of_the_command(hand_out, tmp_path):
    def start(setting):
        raise RayTaskError(ValueError("--out_dir: expected another"))

    with pytest.raises(ValueError, match="^--out_dir: expected another$"):
        hand_out(parts_of(tmp_path), None, start)


def test_no_part_begins_after_a_stop(hand_out, tmp_path):
    asked = iter([False, False])

    def train(part, stop):
        return Report(8, [*map(rows_of, part.members.values())], [])

    done = hand_out(parts_of(tmp_path), train, stop=lambda: next(asked, True))
    assert len(done) == 2 and sum(hand_out.rounds) == 8
    assert hand_out(parts_of(tmp_path), train, stop=lambda: True) == []


@pytest.fixture
def setting(tmp_path, monkeypatch):
    """Of a worker in this process, whose sweep has the lock of its folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLA_FLAGS", "")  # a worker sets both
    monkeypatch.setenv("PJRT_NPROC", "1")
    trials = trials_of("a")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / LOCK).write_text("process 1 on x")
    config = next(iter(trials.values())).config
    return Setting(tmp_path, ray_worker.Path("a"), "process 1 on x", None, config, "CPU")


def trained(worker, part):
    report = worker.train(part, False)
    while report.records is None:
        report = worker.report(False)
    return report


def test_a_worker_trains_parts_as_one_process_does(setting, tmp_path):
    whole = runner.run(trials_of("whole"), tmp_path / "whole")
    worker, parts = ray_worker.Worker(), parts_of("a")
    assert worker.start(setting) == Report(0, [], [])
    reports = [trained(worker, part._replace(history=3)) for part in parts]
    found = [one for report in reports for one in report.records]
    assert [report.rounds for report in reports] == [8, 8] and reports[0].lines == []
    for one, other in zip(found, whole, strict=True):
        assert one._replace(rows=without_clocks(one.rows)) == other._replace(
            rows=without_clocks(other.rows)
        )
    assert {one.name for one in results.read_all(tmp_path / "a")} == {one.name for one in whole}
    assert not trial_checkpoints.groups(tmp_path / "a", {})


def test_a_worker_stops_when_another_driver_has_the_folder(setting, tmp_path):
    worker = ray_worker.Worker()
    worker.start(setting)
    (tmp_path / "a" / LOCK).write_text("process 2 on x")
    report = trained(worker, parts_of("a")[0])
    assert report.records == [] and results.read(tmp_path / "a", trials_of("a")) == {}


def test_a_machine_that_does_not_share_the_folder_is_refused(setting):
    other = setting._replace(owner="process 2 on y")
    message = "^--out_dir: expected a folder that all machines of the cluster share, found another"
    with pytest.raises(ValueError, match=message):
        ray_worker.Worker().start(other)
    with pytest.raises(ValueError, match=message):
        ray_worker.Worker().start(setting._replace(folder=ray_worker.Path("b")))


def test_unfinished_trials_that_another_worker_has_just_removed_are_passed_over(
    tmp_path, monkeypatch
):
    gone, there = (trial_checkpoints.place(tmp_path, {name: name}) for name in "ab")
    read = trial_checkpoints._read

    def removed(path):
        if path.parent == gone:
            raise FileNotFoundError(path)
        return read(path)

    monkeypatch.setattr(trial_checkpoints, "_read", removed)
    assert trial_checkpoints.groups(tmp_path, {"a": "a", "b": "b"}) == [["b"]]
    assert trial_checkpoints.place(tmp_path, {"b": "b"}) == there
    trial_checkpoints.remove_all(tmp_path)
    assert there.is_dir() and gone.is_dir()
    trial_checkpoints.remove(there)
    trial_checkpoints.remove(gone)
    trial_checkpoints.remove_all(tmp_path)
    assert not [*tmp_path.iterdir()]
