"""runs/checkpoints.py: what was saved comes back whole, and what is not whole is noticed."""

import os
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import assert_trees_equal, federated, make_schedule, softmax_task
from refusal import refused
from small_runs import contents, copied

import ccfl_jax as ccfl
from ccfl_jax.runs import checkpoints
from ccfl_jax.runs.array_file import ArrayFileHandler

pytestmark = pytest.mark.usefixtures("quickly_compiled")
TASK, SERVER = softmax_task(), ccfl.cc_fedams(0.1)
ROUND = ccfl.build_round(TASK, SERVER, local=0.1, batch_size=2, lanes=1)
STALENESS = [[0], [1], [2], [2]]
SCHEDULE = make_schedule([[0, 1], [1, 2], [2, 0], [0, 1]], STALENESS, work=2)


def start(server=SERVER, task=TASK, history_length=3):
    """On its device, as a restored state is: both run the same program."""
    state = ccfl.init_state(task, server, jax.random.key(3), history_length)
    return jax.device_put(state, jax.devices()[0])


def at(number):
    return start()._replace(round=jnp.int32(number))


def advanced(state, t):
    """The state after round t, and the round's info; `state` is donated."""
    data, *_ = federated([4, 5, 6])
    return ccfl.run_rounds(ROUND, state, SCHEDULE.rounds(t, t + 1), data, donate=True)


@contextmanager
def opened(folder, keep=2):
    kept = checkpoints.open_checkpoints(folder, keep)
    yield kept
    checkpoints.close(kept)


@pytest.fixture
def kept(tmp_path):
    with opened(tmp_path / "kept") as kept:
        yield kept


def restored(kept, like):
    found = checkpoints.restore(kept, like)[0].state
    assert jax.tree.structure(found) == jax.tree.structure(like)
    return found


@pytest.fixture(scope="module")
def states():
    """x_0 to x_4 and what goes with them."""
    found = [start()]
    for t in range(4):
        found.append(advanced(jax.tree.map(jnp.copy, found[t]), t)[0])
    return found


def test_server_state_goes_on_after_restoring(kept, states):
    """Three rounds, saved and restored, then an upload of zero: only momentum moves the model."""
    checkpoints.save(kept, states[3])
    found = restored(kept, start())
    assert_trees_equal(found, states[3])
    assert int(next(s for s in found.server if hasattr(s, "mu")).count) == 3
    zeros = jax.tree.map(np.zeros_like, found.params)
    updates, _ = jax.jit(SERVER.update)(zeros, found.server, found.params)
    assert all(np.any(update) for update in jax.tree.leaves(updates))
    assert_trees_equal(advanced(found, 3)[0], states[4])


def test_checkpointing_changes_no_number(kept, states):
    """Buffers are donated to the next round: what was saved is what was there before it."""
    state = start()
    for t in range(4):
        checkpoints.save(kept, state)
        assert_trees_equal(restored(kept, state), states[t])
        state, _ = advanced(state, t)
    assert_trees_equal(state, states[4])


def test_bfloat16_and_plain_servers_are_restored(kept):
    state = start(optax.sgd(1.0, momentum=0.9), softmax_task(jnp.bfloat16))
    checkpoints.save(kept, state)
    found = restored(kept, state)
    assert found.params["w"].dtype == jnp.bfloat16
    assert_trees_equal(found, state)


def test_the_newest_two_checkpoints_are_kept(kept):
    assert checkpoints.restore(kept, start()) == (None, [])
    for number in (0, 10, 20, 25):
        checkpoints.save(kept, at(number))
    assert kept.all_steps() == [20, 25]
    assert int(restored(kept, start()).round) == 25


def test_the_best_checkpoint_is_kept_besides(tmp_path):
    with opened(tmp_path, keep=1) as kept:
        for number, score in ((0, 0.1), (1, 0.9), (2, None), (3, 0.5), (4, None)):
            checkpoints.save(kept, at(number), score=score)
        kept.wait_until_finished()
        assert kept.all_steps() == [1, 4]


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ({"history_length": 4}, "history.models.b: expected float32 (4, 3), found float32 (3, 3)"),
        ({"server": ccfl.cc_fedavg()}, "server.0.count: expected None, found int32 ()"),
        ({"task": softmax_task(jnp.bfloat16)},
         "history.models.b: expected bfloat16 (3, 3), found float32 (3, 3)"),
    ],
)  # fmt: skip
def test_checkpoint_of_another_model(kept, like, message):
    checkpoints.save(kept, start())
    refused(f"...{message}...", restored, kept, start(**like))


def test_rounds_since_the_last_row_and_what_was_said_come_back(kept):
    state, info = advanced(start(), 0)
    checkpoints.save(kept, state, info, {"rows": 7, "seconds": 0.1})
    saved, broken = checkpoints.restore(kept, start())
    assert saved.about == {"rows": 7, "seconds": 0.1, "round": 1} and broken == []
    assert jax.tree.structure(saved.infos) == jax.tree.structure(info)
    assert_trees_equal(saved.infos, info)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A folder with checkpoints of rounds 1 and 2, with rounds since a row."""
    folder = tmp_path_factory.mktemp("two")
    with opened(folder) as kept:
        _, info = advanced(start(), 0)
        for number in (1, 2):
            checkpoints.save(kept, at(number), info, {"rows": number})
    return folder


def change(file):
    data = file.read_bytes()
    half = len(data) // 2
    file.write_bytes(data[:half] + b"\0changed\0" + data[half + 9 :])


HARM = {
    "emptied": partial(os.truncate, length=0),
    "cut": lambda file: os.truncate(file, file.stat().st_size // 2),
    "changed": change,
    "removed": Path.unlink,
}


@pytest.mark.parametrize("how", HARM)
def test_a_harmed_checkpoint_is_noticed_or_gives_what_was_saved(two, tmp_path, how):
    """Whatever file of the newest is harmed: its own numbers come back, or those of the one before
    with a warning, and never others."""
    newest, noticed = two / checkpoints.CHECKPOINTS / "2", 0
    for number, file in enumerate(path for path in newest.rglob("*") if path.is_file()):
        folder = copied(two, tmp_path / str(number))
        HARM[how](folder / file.relative_to(two))
        with opened(folder) as kept:
            saved, broken = checkpoints.restore(kept, start())
            assert saved.about["rows"] == (1 if broken else 2)
            assert_trees_equal(saved.state, at(saved.about["rows"]))
            if broken:
                noticed += 1
                assert broken[0].startswith("the checkpoint of round 2 is not whole (")
                assert kept.all_steps() == [1]
                checkpoints.save(kept, at(2))  # going on comes by it again
    assert noticed == 1  # the rest is Orbax's own, which is not needed to go on


def test_every_byte_of_the_numbers_is_under_a_checksum(two):
    """One changed in 300 places, spread over the file: never other numbers, nor another `about`."""
    path = next((two / checkpoints.CHECKPOINTS / "2").rglob("arrays.npz"))
    data, handler = path.read_bytes(), ArrayFileHandler()
    whole, noticed = handler.restore(path.parent), 0
    try:
        for place in np.linspace(0, len(data) - 1, 300).astype(int):
            path.write_bytes(data[:place] + bytes([data[place] ^ 0x20]) + data[place + 1 :])
            try:
                found = handler.restore(path.parent)
            except Exception:
                noticed += 1
            else:
                assert found.about == whole.about
                assert_trees_equal(found.arrays, whole.arrays)
    finally:
        path.write_bytes(data)
    assert noticed >= 200


@pytest.mark.parametrize(("then", "most"), [(Path.mkdir, 1), (lambda folder: None, 0)])
def test_the_one_before_is_taken(two, tmp_path, then, most):
    """An empty folder, and what a killed process leaves: a folder under another name."""
    root = copied(two, tmp_path / "f") / checkpoints.CHECKPOINTS
    (root / "2").rename(root / "2.orbax-checkpoint-tmp")
    then(root / "2")
    with opened(root.parent) as kept:
        saved, broken = checkpoints.restore(kept, start())
    assert int(saved.state.round) == 1 and len(broken) <= most
    assert [path.name for path in root.iterdir() if path.is_dir()] == ["1"]


def test_none_that_is_whole_is_no_start_anew(two, tmp_path):
    folder = copied(two, tmp_path / "f")
    for file in (folder / checkpoints.CHECKPOINTS).rglob("arrays.npz"):
        file.write_bytes(b"")
    before = contents(folder)
    message = "...checkpoints: expected a whole checkpoint, found the checkpoint of round 2 ..."
    with opened(folder) as kept:
        refused(message, checkpoints.restore, kept, start(), kind=OSError)
    assert contents(folder) == before


_FULL = """
import resource, signal, sys
import test_checkpoints as own
from ccfl_jax.runs import checkpoints
kept = checkpoints.open_checkpoints(sys.argv[1])
checkpoints.save(kept, own.at(1))
kept.wait_until_finished()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))
try:
    checkpoints.save(kept, own.at(2))
    checkpoints.close(kept)
except OSError as error:
    print(error)
"""


def test_a_full_disk_is_an_error_in_a_line_and_the_one_before_stays(tmp_path):
    """A limit on the size of files stands for a disk without room."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _FULL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert "checkpoints: a checkpoint could not be written (" in done.stdout, done.stderr
    assert len(done.stdout.splitlines()) == 1
    with opened(tmp_path) as kept:
        assert_trees_equal(restored(kept, start()), at(1))
