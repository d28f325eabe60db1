"""ccfl_jax/checkpoints.py: what was saved comes back whole, and what is not whole is noticed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import federated, make_schedule, softmax_task

import ccfl_jax as ccfl
from ccfl_jax.runs import checkpoints
from ccfl_jax.runs.array_file import ArrayFileHandler


def _state(server, task=None, history_length=3):
    return ccfl.init_state(task or softmax_task(), server, jax.random.key(3), history_length)


def _at(number):
    return _state(ccfl.cc_fedavg())._replace(round=jnp.int32(number))


def _restored(kept, like):
    return checkpoints.restore(kept, like)[0].state


def _numbers(tree):
    return [
        np.asarray(jax.random.key_data(a) if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else a)
        for a in jax.tree.leaves(tree)
    ]


def test_server_state_goes_on_after_restoring(tmp_path):
    # Three rounds, saved and restored, then one where nobody comes back with anything but zero:
    # only momentum that was really restored can move the model.
    task, server = softmax_task(), ccfl.cc_fedams(0.1)
    round_fn = ccfl.build_round(task, server, local=optax.sgd(0.1), batch_size=2)
    data, *_ = federated([4, 5, 6])
    schedule = make_schedule([[0, 1], [1, 2], [2, 0], [0, 1]], work=2)
    state, _ = ccfl.run_rounds(round_fn, _state(server), schedule.rounds(0, 3), data)
    kept = checkpoints.open_checkpoints(tmp_path)
    checkpoints.save(kept, state)
    checkpoints.close(kept)

    reopened = checkpoints.open_checkpoints(tmp_path)
    restored = _restored(reopened, _state(server))
    checkpoints.close(reopened)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    for ours, theirs in zip(_numbers(restored), _numbers(state), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    adaptive = next(s for s in restored.server if hasattr(s, "mu"))
    assert int(adaptive.count) == 3
    zeros = jax.tree.map(jnp.zeros_like, restored.params)
    updates, _ = server.update(zeros, restored.server, restored.params)
    assert all(bool((jnp.abs(u) > 0).any()) for u in jax.tree.leaves(updates))
    rest = schedule.rounds(3, 4)
    straight, _ = ccfl.run_rounds(round_fn, state, rest, data)
    resumed, _ = ccfl.run_rounds(round_fn, restored, rest, data)
    for ours, theirs in zip(_numbers(resumed), _numbers(straight), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_bfloat16_and_plain_servers_are_restored(tmp_path):
    state = _state(optax.sgd(1.0, momentum=0.9), softmax_task(jnp.bfloat16))
    kept = checkpoints.open_checkpoints(tmp_path)
    checkpoints.save(kept, state)
    restored = _restored(kept, state)
    checkpoints.close(kept)
    assert restored.params["w"].dtype == jnp.bfloat16
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    for ours, theirs in zip(_numbers(restored), _numbers(state), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_newest_two_checkpoints_are_kept(tmp_path):
    state = _state(ccfl.cc_fedavg())
    kept = checkpoints.open_checkpoints(tmp_path)
    for number in (0, 10, 20, 25):
        checkpoints.save(kept, state._replace(round=jnp.int32(number)))
    assert kept.all_steps() == [20, 25]
    assert int(_restored(kept, state).round) == 25
    checkpoints.close(kept)


def test_no_checkpoint(tmp_path):
    kept = checkpoints.open_checkpoints(tmp_path)
    assert checkpoints.restore(kept, _state(ccfl.cc_fedavg())) == (None, [])
    checkpoints.close(kept)


def test_checkpoint_of_another_model(tmp_path):
    kept = checkpoints.open_checkpoints(tmp_path)
    checkpoints.save(kept, _state(ccfl.cc_fedams(0.1), history_length=3))
    with pytest.raises(
        ValueError, match=r"history.models.b: expected float32 \(4, 3\), found float32 \(3, 3\)"
    ):
        _restored(kept, _state(ccfl.cc_fedams(0.1), history_length=4))
    with pytest.raises(ValueError, match=r"server.0.count: expected None, found int32 \(\)"):
        _restored(kept, _state(ccfl.cc_fedavg(), history_length=3))
    with pytest.raises(ValueError, match=r"bfloat16"):
        _restored(kept, _state(ccfl.cc_fedams(0.1), softmax_task(jnp.bfloat16)))
    checkpoints.close(kept)


def test_checkpointing_changes_no_number(tmp_path):
    # Buffers are donated to the next piece: what was saved must be what was there before it.
    task, server = softmax_task(), ccfl.cc_fedadam(0.1)
    round_fn = ccfl.build_round(task, server, local=optax.sgd(0.1), batch_size=2)
    data, *_ = federated([4, 5])
    schedule = make_schedule([[0, 1]] * 4, staleness=[[0], [1], [2], [2]])
    whole, _ = ccfl.run_rounds(round_fn, _state(server), schedule, data)
    kept = checkpoints.open_checkpoints(tmp_path)
    state, saved = _state(server), []
    for t in range(4):
        checkpoints.save(kept, state)
        saved.append(_numbers(_restored(kept, state)))
        state, _ = ccfl.run_rounds(round_fn, state, schedule.rounds(t, t + 1), data, donate=True)
    checkpoints.close(kept)
    for ours, theirs in zip(_numbers(state), _numbers(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert [int(numbers[-2]) for numbers in saved] == [0, 1, 2, 3]


def test_the_best_checkpoint_is_kept_besides(tmp_path):
    kept = checkpoints.open_checkpoints(tmp_path, keep=1)
    for number, score in ((0, 0.1), (1, 0.9), (2, None), (3, 0.5), (4, None)):
        checkpoints.save(kept, _at(number), score=score)
    kept.wait_until_finished()
    assert kept.all_steps() == [1, 4]
    checkpoints.close(kept)


def test_rounds_since_the_last_row_and_what_was_said_come_back(tmp_path):
    task, server = softmax_task(), ccfl.cc_fedsgd(0.1)
    round_fn = ccfl.build_round(task, server, local=optax.sgd(0.1), batch_size=2)
    data, *_ = federated([4, 5])
    state, info = ccfl.run_rounds(round_fn, _state(server), make_schedule([[0, 1]] * 3), data)
    kept = checkpoints.open_checkpoints(tmp_path)
    checkpoints.save(kept, state, info, {"rows": 7, "seconds": 0.1})
    saved, broken = checkpoints.restore(kept, _state(server))
    checkpoints.close(kept)
    assert saved.about == {"rows": 7, "seconds": 0.1, "round": 3} and broken == []
    assert jax.tree.structure(saved.infos) == jax.tree.structure(info)
    for ours, theirs in zip(jax.tree.leaves(saved.infos), jax.tree.leaves(info), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A folder with checkpoints of rounds 1 and 2, with rounds since a row."""
    folder = tmp_path_factory.mktemp("two")
    kept = checkpoints.open_checkpoints(folder)
    _, info = ccfl.run_rounds(
        ccfl.build_round(softmax_task(), ccfl.cc_fedavg(), batch_size=2),
        _state(ccfl.cc_fedavg()),
        make_schedule([[0, 1]]),
        federated([4, 5])[0],
    )
    for number in (1, 2):
        checkpoints.save(kept, _at(number), info, {"rows": number})
    checkpoints.close(kept)
    return folder


def _harm(path, how):
    data = path.read_bytes()
    if how == "emptied":
        path.write_bytes(b"")
    elif how == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif how == "removed":
        path.unlink()
    else:
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 0x55]) + data[middle + 1 :])


@pytest.mark.parametrize("how", ["emptied", "cut", "removed", "changed"])
def test_a_harmed_checkpoint_is_noticed_or_gives_what_was_saved(two, tmp_path, how):
    """Whatever file of the newest is harmed: its own numbers come back, or those of the one before
    with a warning, and never others."""
    newest = two / checkpoints.CHECKPOINTS / "2"
    noticed = 0
    for file in sorted(path for path in newest.rglob("*") if path.is_file()):
        folder = tmp_path / f"{noticed}-{file.name}"
        shutil.copytree(two, folder)
        _harm(folder / file.relative_to(two), how)
        kept = checkpoints.open_checkpoints(folder)
        saved, broken = checkpoints.restore(kept, _at(0))
        number = int(saved.state.round)
        assert number == (1 if broken else 2) == saved.about["rows"]
        for ours, theirs in zip(_numbers(saved.state), _numbers(_at(number)), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        if broken:
            noticed += 1
            assert broken[0].startswith("the checkpoint of round 2 is not whole (")
            assert kept.all_steps() == [1]
            checkpoints.save(kept, _at(2))  # going on comes by it again
        checkpoints.close(kept)
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
                continue
            assert found.about == whole.about and found.arrays.keys() == whole.arrays.keys()
            for name, array in whole.arrays.items():
                np.testing.assert_array_equal(found.arrays[name], array)
    finally:
        path.write_bytes(data)
    assert noticed >= 200


def test_an_emptied_checkpoint_folder(two, tmp_path):
    folder = tmp_path / "f"
    shutil.copytree(two, folder)
    shutil.rmtree(folder / checkpoints.CHECKPOINTS / "2")
    (folder / checkpoints.CHECKPOINTS / "2").mkdir()
    kept = checkpoints.open_checkpoints(folder)
    saved, broken = checkpoints.restore(kept, _at(0))
    assert int(saved.state.round) == 1 and len(broken) <= 1
    checkpoints.close(kept)


def test_none_that_is_whole_is_no_start_anew(two, tmp_path):
    folder = tmp_path / "f"
    shutil.copytree(two, folder)
    for file in (folder / checkpoints.CHECKPOINTS).rglob("arrays.npz"):
        file.write_bytes(b"")
    before = sorted(folder.rglob("*"))
    kept = checkpoints.open_checkpoints(folder)
    with pytest.raises(
        OSError, match=r"checkpoints: found none that is whole: the check"
    ) as caught:
        checkpoints.restore(kept, _at(0))
    assert len(str(caught.value).splitlines()) == 1
    checkpoints.close(kept)
    assert sorted(folder.rglob("*")) == before


def test_a_checkpoint_half_written_counts_as_none(two, tmp_path):
    """What a killed process leaves is a folder under another name."""
    folder = tmp_path / "f"
    shutil.copytree(two, folder)
    root = folder / checkpoints.CHECKPOINTS
    (root / "2").rename(root / "2.orbax-checkpoint-tmp")
    kept = checkpoints.open_checkpoints(folder)
    saved, broken = checkpoints.restore(kept, _at(0))
    assert int(saved.state.round) == 1 and broken == []
    assert [path.name for path in root.iterdir() if path.is_dir()] == ["1"]
    checkpoints.close(kept)


_FULL = """
import resource, signal, sys
import jax, jax.numpy as jnp
import ccfl_jax as ccfl
from ccfl_jax.runs import checkpoints
task = ccfl.Task(lambda key: jax.random.normal(key, (200_000,)), None, None)
state = ccfl.init_state(task, ccfl.cc_fedavg(), jax.random.key(0))
kept = checkpoints.open_checkpoints(sys.argv[1])
checkpoints.save(kept, state)
kept.wait_until_finished()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    checkpoints.save(kept, state._replace(round=jnp.int32(1)))
    checkpoints.close(kept)
except OSError as error:
    print(error)
"""


def test_a_full_disk_is_an_error_in_a_line_and_the_one_before_stays(tmp_path):
    """A limit on the size of files stands for a disk without room."""
    done = subprocess.run(
        [sys.executable, "-c", _FULL, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert "checkpoints: a checkpoint could not be written (" in done.stdout, done.stderr
    assert len(done.stdout.splitlines()) == 1
    task = ccfl.Task(lambda key: jnp.zeros(200_000), None, None)
    kept = checkpoints.open_checkpoints(tmp_path)
    saved, _ = checkpoints.restore(kept, ccfl.init_state(task, ccfl.cc_fedavg(), jax.random.key(0)))
    checkpoints.close(kept)
    assert int(saved.state.round) == 0
    assert float(jnp.abs(saved.state.params).sum()) > 0
