"""ccfl_jax/record.py: what is written can be read back, and nothing is taken up by mistake."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import federated, make_schedule, softmax_task

import ccfl_jax as ccfl
from ccfl_jax import record

_CONFIG = {"alpha": 0.5, "seed": 0, "rounds": 10, "lanes": None}
_TEST = {"loss": 1.5, "accuracy": 0.25}


def _info(**changes):
    """Two rounds of three slots; by default every slot returned, two uploads counted in each."""
    fields = dict(
        train_loss=np.array([1.0, 3.0], np.float32),
        train_metrics={"accuracy": np.array([0.25, 0.5], np.float32)},
        participants=np.array([2, 2]),
        rejected=np.array([1, 1]),
        present=np.ones((2, 3), bool),
        staleness=np.array([[0, 0, 0], [1, 0, 1]]),
        steps=np.array([[1, 2, 3], [4, 5, 6]]),
        samples=np.array([[10, 20, 30], [40, 50, 60]], np.float32),
    )
    return ccfl.Info(**{**fields, **changes})


def _next_row(info, **changes):
    before = {**record.first_row(_TEST, 2.0, False), **changes}
    return record.next_row(before, info, _TEST, 0.5, None, False)


def _strict(text):
    def refuse(name):
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


def _state(server, task=None, history_length=3):
    return ccfl.init_state(task or softmax_task(), server, jax.random.key(3), history_length)


def _numbers(tree):
    return [
        np.asarray(jax.random.key_data(a) if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else a)
        for a in jax.tree.leaves(tree)
    ]


def test_check_unused(tmp_path):
    record.check_unused(tmp_path)
    record.check_unused(tmp_path / "new")
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match=r"found a folder with content"):
        record.check_unused(tmp_path)
    with pytest.raises(FileExistsError, match=r"file: found a file"):
        record.check_unused(tmp_path / "file")


def test_config_says_what_ran_where(tmp_path):
    record.write_config(tmp_path, _CONFIG)
    saved = _strict((tmp_path / record.CONFIG).read_text())
    environment = saved.pop("environment")
    assert saved == _CONFIG
    assert environment["jax"] == jax.__version__
    assert environment["device"] == jax.devices()[0].device_kind
    assert environment["devices"] == jax.device_count()
    assert "ccfl_jax" in environment
    assert [path.name for path in tmp_path.iterdir()] == [record.CONFIG]


def test_check_config_names_every_difference(tmp_path):
    record.write_config(tmp_path, _CONFIG)
    record.check_config(tmp_path, _CONFIG, ())
    record.check_config(tmp_path, {**_CONFIG, "rounds": 20}, ("rounds",))
    changed = {**_CONFIG, "rounds": 20, "alpha": 0.3, "seed": 1, "new": 2}
    with pytest.raises(ValueError) as caught:
        record.check_config(tmp_path, changed, ("rounds",))
    message = str(caught.value)
    assert "alpha 0.5 -> 0.3, new None -> 2, seed 0 -> 1" in message
    assert "except rounds" in message


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_check_config_without_a_run(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=rf"{name}: found no config.json"):
        record.check_config(tmp_path / name, _CONFIG, ())


def test_check_config_damaged(tmp_path):
    (tmp_path / record.CONFIG).write_text('{"alpha": 0.')
    with pytest.raises(ValueError, match=r"config.json: not readable"):
        record.check_config(tmp_path, _CONFIG, ())


def test_rows_are_strict_json(tmp_path):
    rows = [
        {"round": 0, "loss": float("nan"), "accuracy": np.float32(0.5), "diverged": np.bool_(True)},
        {"round": jnp.int32(1), "loss": np.float64("inf"), "accuracy": jnp.float32("-inf")},
    ]
    written = [record.append_row(tmp_path, row) for row in rows]
    expected = [
        {"round": 0, "loss": None, "accuracy": 0.5, "diverged": True},
        {"round": 1, "loss": None, "accuracy": None},
    ]
    lines = (tmp_path / record.METRICS).read_text().splitlines()
    assert [_strict(line) for line in lines] == expected == written
    assert record.read_rows(tmp_path) == expected


def test_a_line_cut_off_in_writing_is_left_out(tmp_path):
    path = tmp_path / record.METRICS
    path.write_text('{"round": 0}\n{"round": 1}\n{"rou')
    assert record.read_rows(tmp_path) == [{"round": 0}, {"round": 1}]
    assert record.drop_rows_after(tmp_path, 1) == [{"round": 0}, {"round": 1}]
    record.append_row(tmp_path, {"round": 2})
    assert [_strict(line)["round"] for line in path.read_text().splitlines()] == [0, 1, 2]


def test_damaged_metrics_file(tmp_path):
    (tmp_path / record.METRICS).write_text('{"round": 0}\n{"rou\n{"round": 2}\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl: found a line that is not JSON"):
        record.read_rows(tmp_path)


def test_drop_rows_after(tmp_path):
    for number in (0, 5, 10):
        record.append_row(tmp_path, {"round": number})
    assert record.drop_rows_after(tmp_path, 5) == [{"round": 0}, {"round": 5}]
    assert record.read_rows(tmp_path) == [{"round": 0}, {"round": 5}]
    with pytest.raises(ValueError, match=r"found no row for round 4"):
        record.drop_rows_after(tmp_path, 4)
    assert len(record.read_rows(tmp_path)) == 2


def test_first_and_next_row_have_the_same_columns():
    first = record.first_row(_TEST, 2.0, False)
    assert list(first) == list(_next_row(_info()))
    assert (first["round"], first["train_loss"], first["compile_seconds"]) == (0, None, 2.0)


def test_next_row_means_and_sums():
    row = _next_row(_info(), round=10, client_updates=4, samples=1000, seconds=2.0)
    assert row == {
        "round": 12,
        "train_loss": 2.0,  # (1 + 3) / 2
        "train_accuracy": 0.375,  # (0.25 + 0.5) / 2
        "test_loss": 1.5,
        "test_accuracy": 0.25,
        "participants": 4,
        "rejected": 2,
        "mean_staleness": 2 / 6,
        "mean_steps": 21 / 6,
        "client_updates": 4 + 6,
        "samples": 1000 + 210,
        "seconds": 2.5,
        "compile_seconds": None,
        "diverged": False,
    }


def test_next_row_leaves_out_absent_slots_and_rounds_without_uploads():
    row = _next_row(
        _info(
            train_loss=np.array([1.0, np.nan], np.float32),
            participants=np.array([2, 0]),
            rejected=np.array([0, 0]),
            present=np.array([[True, True, False], [False, False, False]]),
            staleness=np.array([[0, 1, 9], [9, 9, 9]]),
            steps=np.array([[1, 2, 0], [0, 0, 0]]),
        )
    )
    assert (row["train_loss"], row["train_accuracy"]) == (1.0, 0.25)
    assert (row["mean_staleness"], row["mean_steps"]) == (0.5, 1.5)
    assert row["client_updates"] == 2


def test_next_row_without_any_upload():
    row = _next_row(_info(participants=np.zeros(2, int), present=np.zeros((2, 3), bool)))
    assert (row["train_loss"], row["mean_staleness"], row["client_updates"]) == (None, None, 0)
    assert row["round"] == 2


def test_a_loss_that_is_not_finite_is_not_hidden():
    row = _next_row(_info(train_loss=np.array([1.0, np.nan], np.float32)))
    assert np.isnan(row["train_loss"])


def test_sample_counts_stay_exact():
    # 2**24 + 1 is no float32: sums in float32 would lose the one.
    samples = np.array([[2.0**24, 1.0, 0.0], [0.0, 0.0, 0.0]], np.float32)
    assert _next_row(_info(samples=samples))["samples"] == 2**24 + 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_is_finite(bad):
    params = {"a": jnp.ones((2, 3)), "b": jnp.ones(4, jnp.bfloat16)}
    assert record.is_finite(params)
    assert not record.is_finite({**params, "b": params["b"].at[3].set(bad)})


def test_server_state_goes_on_after_restoring(tmp_path):
    # Three rounds, saved and restored, then one where nobody comes back with anything but zero:
    # only momentum that was really restored can move the model.
    task, server = softmax_task(), ccfl.cc_fedams(0.1)
    round_fn = ccfl.build_round(task, server, local=optax.sgd(0.1), batch_size=2)
    data, *_ = federated([4, 5, 6])
    schedule = make_schedule([[0, 1], [1, 2], [2, 0], [0, 1]], work=2)
    state, _ = ccfl.run_rounds(round_fn, _state(server), schedule.rounds(0, 3), data)
    checkpoints = record.open_checkpoints(tmp_path)
    record.save_state(checkpoints, state)
    checkpoints.close()

    reopened = record.open_checkpoints(tmp_path)
    restored = record.restore_state(reopened, _state(server))
    reopened.close()
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
    checkpoints = record.open_checkpoints(tmp_path)
    record.save_state(checkpoints, state)
    restored = record.restore_state(checkpoints, state)
    checkpoints.close()
    assert restored.params["w"].dtype == jnp.bfloat16
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    for ours, theirs in zip(_numbers(restored), _numbers(state), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_newest_two_checkpoints_are_kept(tmp_path):
    state = _state(ccfl.cc_fedavg())
    checkpoints = record.open_checkpoints(tmp_path)
    for number in (0, 10, 20, 25):
        record.save_state(checkpoints, state._replace(round=jnp.int32(number)))
    assert checkpoints.all_steps() == [20, 25]
    assert int(record.restore_state(checkpoints, state).round) == 25
    checkpoints.close()


def test_no_checkpoint(tmp_path):
    checkpoints = record.open_checkpoints(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"checkpoints: found no checkpoint"):
        record.restore_state(checkpoints, _state(ccfl.cc_fedavg()))
    checkpoints.close()


def test_checkpoint_of_another_model(tmp_path):
    checkpoints = record.open_checkpoints(tmp_path)
    record.save_state(checkpoints, _state(ccfl.cc_fedams(0.1), history_length=3))
    with pytest.raises(
        ValueError, match=r"history.models.b: found float32 \(3, 3\), legal: float32 \(4, 3\)"
    ):
        record.restore_state(checkpoints, _state(ccfl.cc_fedams(0.1), history_length=4))
    with pytest.raises(ValueError, match=r"server.0.count: found int32 \(\), legal: None"):
        record.restore_state(checkpoints, _state(ccfl.cc_fedavg(), history_length=3))
    with pytest.raises(ValueError, match=r"bfloat16"):
        record.restore_state(checkpoints, _state(ccfl.cc_fedams(0.1), softmax_task(jnp.bfloat16)))
    checkpoints.close()


def test_checkpointing_changes_no_number(tmp_path):
    # Buffers are donated to the next piece: what was saved must be what was there before it.
    task, server = softmax_task(), ccfl.cc_fedadam(0.1)
    round_fn = ccfl.build_round(task, server, local=optax.sgd(0.1), batch_size=2)
    data, *_ = federated([4, 5])
    schedule = make_schedule([[0, 1]] * 4, staleness=[[0], [1], [2], [2]])
    whole, _ = ccfl.run_rounds(round_fn, _state(server), schedule, data)
    checkpoints = record.open_checkpoints(tmp_path)
    state, saved = _state(server), []
    for t in range(4):
        record.save_state(checkpoints, state)
        saved.append(_numbers(record.restore_state(checkpoints, state)))
        state, _ = ccfl.run_rounds(round_fn, state, schedule.rounds(t, t + 1), data, donate=True)
    checkpoints.close()
    for ours, theirs in zip(_numbers(state), _numbers(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert [int(numbers[-2]) for numbers in saved] == [0, 1, 2, 3]
