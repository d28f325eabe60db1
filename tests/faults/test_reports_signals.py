"""Signals that announce the end of a job: its work is saved, and it can be resumed."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time

import pytest
from refusal import ended
from small_runs import ROOT, SMALL, line, rows_of, start, without_clocks

from ccfl_jax.runs import checkpoints, train_loop
from experiments import sweep, train
from experiments.sweeps import runner
from experiments.training import run, signals

pytestmark = pytest.mark.usefixtures("quickly_compiled", "undrawn")

SIGNALS = [signal.SIGUSR1, signal.SIGHUP, signal.SIGXCPU, signal.SIGUSR2, signal.SIGTERM]
MANY = [pytest.param(one, id=one.name, marks=pytest.mark.slow if k > 1 else [])
        for k, one in enumerate(SIGNALS)]  # fmt: skip


@contextlib.contextmanager
def signalled(number, times):
    """In this context a command gets the signal so often before its fourth stop is asked for."""

    @contextlib.contextmanager
    def on_signals():
        with signals.on_signals() as stop_requested:
            count = itertools.count()

            def asked():
                if next(count) == 3:
                    for _ in range(times):
                        os.kill(os.getpid(), number)
                        time.sleep(0.05)
                    while not stop_requested():
                        time.sleep(0.01)
                return stop_requested()

            yield asked

    handler = signal.getsignal(number)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_loop, "PIECE", 1)  # rounds
        for module in (run, runner):
            patch.setattr(module, "on_signals", on_signals)
        yield
    signal.signal(number, handler)


def newest(folder):
    rounds = (folder / checkpoints.CHECKPOINTS).glob("[0-9]*")
    return max((int(path.name) for path in rounds if path.name.isdigit()), default=0)


@pytest.mark.parametrize("number", MANY)
def test_nf_18_a_run_is_saved_and_goes_on_to_the_same_rows(straight, tmp_path, capfd, number):
    """Of those that come again by themselves three are as one."""
    folder = tmp_path / "a"
    argv = line("--rounds=6", "--eval_every=2", "--checkpoint_every=100", f"--out_dir={folder}")
    with signalled(number, 1 if number == signal.SIGTERM else 3):
        said = ended(5, capfd, train.main, *argv)
    assert said.err.count(f"{number.name}: stops after this piece of rounds") == 1
    assert f"stopped   --resume --out_dir={folder} continues it" in said.out
    assert 0 < newest(folder) < 6 and not (folder / "lock").exists()
    ended(0, capfd, train.main, *argv, "--resume")
    assert without_clocks(rows_of(folder)) == without_clocks(straight[1])


@pytest.mark.slow
def test_nf_18_a_sweep_is_saved_and_goes_on(tmp_path, capfd):
    argv = ["sweep", *SMALL, "--rounds=6", "--devices=1", "--compilation_cache=off"]
    argv += ["--vary=server_lr=0.1", f"--out_dir={tmp_path / 'a'}"]
    with signalled(signal.SIGUSR1, 2):
        assert "same command continues" in ended(5, capfd, sweep.main, *argv).out
    assert 0 < newest(tmp_path / "a" / "underway" / "server_lr=0.1") < 6
    assert ", 1 unfinished" in ended(0, capfd, sweep.main, *argv).out


CODE = """
import os, signal, sys, time
from experiments.training.signals import on_signals
with on_signals():
    for name in sys.argv[1:]:
        os.kill(os.getpid(), getattr(signal, name))
        time.sleep(0.2)
for name in sys.argv[1:]:  # while what is left to do is done
    if name not in ("SIGTERM", "SIGINT"):
        os.kill(os.getpid(), getattr(signal, name))
print("alive")
"""


def after(*names, shell=""):
    """The exit code of a process that gets these signals, and whether it came to its end."""
    words = ["sh", "-c", f'{shell} exec "$@"', "sh", sys.executable, "-c", CODE, *names]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout == "alive\n", done.stderr


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_nf_18_one_that_a_person_repeats_ends_the_process_at_once(name):
    code, is_alive, said = after(name, name)
    assert code == 128 + getattr(signal, name) and not is_alive
    assert said.count("once more ends at once") == 1


def test_nf_18_different_ones_and_those_that_repeat_themselves_do_not():
    """SIGXCPU comes every second, SIGHUP from the shell and from the system."""
    names = ["SIGUSR1", "SIGTERM", "SIGHUP", "SIGHUP", "SIGXCPU", "SIGXCPU", "SIGUSR1", "SIGINT"]
    code, is_alive, said = after(*names)
    assert (code, is_alive) == (0, True)
    assert said.count("stops after this piece of rounds") == len({*names})


def test_nf_18_nohup_stays_nohup():
    assert after("SIGHUP", "SIGHUP", shell="trap '' HUP;") == (0, True, "")


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS[:3], ids=lambda one: one.name)
def test_nf_18_a_process_ends_with_code_5_whatever_comes_again(tmp_path, number):
    """Until it is gone."""
    args = ["--rounds=60000", "--eval_every=50", f"--out_dir={tmp_path / 'a'}"]
    process = start(*args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while newest(tmp_path / "a") < 50 and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    before = newest(tmp_path / "a")
    while process.poll() is None:
        process.send_signal(number)
        time.sleep(0.1)
    assert process.returncode == 5 and newest(tmp_path / "a") >= before >= 50
