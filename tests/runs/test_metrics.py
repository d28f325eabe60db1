"""runs/metrics.py: what is written can be read back, and nothing is taken up by mistake."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from refusal import refused
from small_runs import rows_of

import ccfl_jax as ccfl
from ccfl_jax.runs import metrics

_TEST = {"loss": 1.5, "accuracy": 0.25}


def _info(**changes):
    """Two rounds of three slots; by default every slot returned, two uploads counted in each."""
    fields = dict(
        train_loss=np.array([1.0, 3.0], np.float32),
        train_metrics={"accuracy": np.array([0.25, 0.5], np.float32)},
        participants=np.array([2, 2]), rejected=np.array([1, 1]), finite=np.array([True, True]),
        counted=np.array([[True, True, False], [False, True, True]]),
        present=np.ones((2, 3), bool),
        staleness=np.array([[0, 0, 0], [1, 0, 1]]), steps=np.array([[1, 2, 3], [4, 5, 6]]),
        samples=np.array([[10, 20, 30], [40, 50, 60]], np.float32),
    )  # fmt: skip
    return ccfl.Info(**{**fields, **changes})


def _schedule(rounds, time=None):
    """Clients 7, 8, 9 in rounds of even number, 9, 8, 7 in the others; records read no more."""
    client = np.tile([[7, 8, 9], [9, 8, 7]], (rounds // 2, 1))
    zeros = np.zeros_like(client)
    return ccfl.Schedule(client, zeros, zeros, zeros.astype(bool), time=time)


def _next_row(info, max_rejected=None, test=_TEST, **changes):
    before = {**metrics.first_row(_TEST, 2.0), **changes}
    run = metrics.Run(_schedule(16), (40, 50), max_rejected)
    return metrics.next_row([before], run, info, test, 0.5, None)


def _rounds(*numbers):
    return [{"round": number} for number in numbers]


def test_rows_are_strict_json(tmp_path):
    nan, inf = float("nan"), np.float64("inf")
    first = {"round": 0, "loss": nan, "accuracy": np.float32(0.5), "diverged": np.bool_(True)}
    second = {"round": jnp.int32(1), "loss": inf, "accuracy": jnp.float32("-inf")}
    expected = [
        {"round": 0, "loss": None, "accuracy": 0.5, "diverged": True},
        {"round": 1, "loss": None, "accuracy": None},
    ]
    written = metrics.append_rows(tmp_path, [first]) + metrics.append_rows(tmp_path, [second])
    assert written == expected == rows_of(tmp_path) == metrics.read_rows(tmp_path)


def test_a_line_cut_off_in_writing_is_left_out(tmp_path):
    path = tmp_path / metrics.METRICS
    path.write_text('{"round": 0}\n{"round": 1}\n{"rou')
    assert metrics.read_rows(tmp_path) == _rounds(0, 1)
    assert metrics.keep_rows(tmp_path, {"": 2}) == [_rounds(0, 1)]
    metrics.append_rows(tmp_path, _rounds(2))
    assert [*map(json.loads, path.read_text().splitlines())] == _rounds(0, 1, 2)


def test_keep_rows(tmp_path):
    metrics.append_rows(tmp_path, _rounds(0, 5, 10))
    assert metrics.keep_rows(tmp_path, {"": 2}) == [_rounds(0, 5)]
    message = "...metrics.jsonl: expected 3 rows, as in the checkpoint, found 2"
    refused(message, metrics.keep_rows, tmp_path, {"": 3})
    assert metrics.read_rows(tmp_path) == _rounds(0, 5)
    assert metrics.keep_rows(tmp_path, {"": 0}) == [[]] and metrics.read_rows(tmp_path) == []


def test_rows_of_trials_side_by_side_are_kept_by_trial(tmp_path):
    """As in the folder of trials that advance together, one of which ended before the others."""
    rows = [{"trial": name, "round": t} for t in (0, 5, 10) for name in ("a", "b")][:-1]
    metrics.append_rows(tmp_path, rows)
    assert metrics.keep_rows(tmp_path, {"b": 1, "a": 3}) == [_rounds(0), _rounds(0, 5, 10)]
    kept = [row for row in rows if row["trial"] == "a" or not row["round"]]
    assert metrics.read_rows(tmp_path) == kept
    message = "...metrics.jsonl: expected 2 rows, as in the checkpoint, found 1"
    refused(message, metrics.keep_rows, tmp_path, {"b": 2})


def test_rounds_that_do_not_rise_are_refused(tmp_path):
    metrics.append_rows(tmp_path, _rounds(0, 5, 5))
    message = "...metrics.jsonl: expected rising rounds, found [0, 5, 5]"
    refused(message, metrics.keep_rows, tmp_path, {"": 3})
    assert len(metrics.keep_rows(tmp_path, {"": 2})[0]) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("3", "expected a row with its round, found 3"),
        ('{"round": "1"}', "expected a row with its round, found {'round': '1'}"),
        ('{"round": NaN}', "expected numbers, found NaN"),
        ("\xff", "expected JSON, found ..."),
        ('{"round": 0}\n{"rou\n{"round": 2}', "expected JSON, found ..."),
    ],
)
def test_a_line_that_is_no_row(tmp_path, line, message):
    (tmp_path / metrics.METRICS).write_bytes(f"{line}\n".encode("latin1"))
    refused(f"{tmp_path / metrics.METRICS}: {message}", metrics.read_rows, tmp_path)


def test_first_and_next_row_have_the_same_columns():
    first = metrics.first_row(_TEST, 2.0)
    assert list(first) == list(_next_row(_info()))
    assert (first["round"], first["train_loss"], first["compile_seconds"]) == (0, None, 2.0)


def test_next_row_means_and_sums():
    row = _next_row(_info(), round=10, client_updates=4, samples=1000, seconds=2.0)
    assert row == {
        "round": 12, "train_loss": (1 + 3) / 2, "train_accuracy": (0.25 + 0.5) / 2,
        "test_loss": 1.5, "test_accuracy": 0.25, "participants": 4, "rejected": 2,
        "rejected_clients": {"9": 2},  # in the last slot of the first, in the first of the second
        "mean_staleness": 2 / 6, "mean_steps": 21 / 6, "client_updates": 4 + 6,
        "samples": 1000 + 210, "bytes_sent": (4 + 6) * 40, "bytes_received": (4 + 6) * 50,
        "virtual_time": None, "seconds": 2.5, "compile_seconds": None,
        "diverged": False, "diverged_at": None,
    }  # fmt: skip


def test_next_row_leaves_out_absent_slots_and_rounds_without_uploads():
    row = _next_row(_info(
        train_loss=np.array([1.0, np.nan], np.float32),
        participants=np.array([2, 0]), rejected=np.array([0, 0]),
        present=np.array([[True, True, False], [False, False, False]]),
        staleness=np.array([[0, 1, 9], [9, 9, 9]]), steps=np.array([[1, 2, 0], [0, 0, 0]]),
    ))  # fmt: skip
    assert (row["train_loss"], row["train_accuracy"]) == (1.0, 0.25)
    assert (row["mean_staleness"], row["mean_steps"]) == (0.5, 1.5)
    assert row["client_updates"] == 2


def test_next_row_without_any_upload():
    row = _next_row(_info(participants=np.zeros(2, int), present=np.zeros((2, 3), bool)))
    assert (row["train_loss"], row["mean_staleness"], row["client_updates"]) == (None, None, 0)
    assert row["round"] == 2


def test_of_04_a_round_without_a_value_of_a_metric_is_left_out():
    row = _next_row(_info(train_metrics={"accuracy": np.array([np.nan, 0.5], np.float32)}))
    assert row["train_accuracy"] == 0.5
    row = _next_row(_info(train_metrics={"accuracy": np.full(2, np.nan, np.float32)}))
    assert row["train_accuracy"] is None


def test_a_loss_that_is_not_finite_is_not_hidden():
    row = _next_row(_info(train_loss=np.array([1.0, np.nan], np.float32)))
    assert np.isnan(row["train_loss"])


def test_sample_counts_stay_exact():
    # 2**24 + 1 is no float32: sums in float32 would lose the one.
    samples = np.array([[2.0**24, 1.0, 0.0], [0.0, 0.0, 0.0]], np.float32)
    assert _next_row(_info(samples=samples))["samples"] == 2**24 + 1


@pytest.mark.parametrize("pieces", [[12], [2, 4, 6], [1, 1, 3, 7]])
def test_bytes_and_virtual_time_add_up_over_rows_on_disk(tmp_path, pieces):
    """Each row is made from those read back, as by a run that is stopped after every row."""
    rng = np.random.default_rng(0)
    present, time = rng.random((12, 3)) < 0.6, np.cumsum(rng.exponential(50.0, 12))
    run = metrics.Run(_schedule(12, time), (3_000_000_001, 3))  # more than an int32
    metrics.append_rows(tmp_path, [metrics.first_row(_TEST, 2.0, has_clock=True)])
    for stop in np.cumsum(pieces):
        rows = metrics.read_rows(tmp_path)
        part = slice(rows[-1]["round"], stop)
        of_round = {name: np.ones(stop - part.start, int) for name in ("train_loss", "finite")}
        nothing = np.zeros((stop - part.start, 3), int)
        slots = dict.fromkeys(("staleness", "steps", "samples"), nothing)
        own = {"accuracy": of_round["train_loss"]}
        came = dict(present=present[part], counted=present[part], train_metrics=own)
        counts = dict(participants=present[part].sum(axis=1), rejected=nothing[:, 0])
        info = _info(**of_round, **slots, **came, **counts)
        metrics.append_rows(tmp_path, [metrics.next_row(rows, run, info, _TEST, 1.0, None)])
    rows, ends = metrics.read_rows(tmp_path), np.array([0, *np.cumsum(pieces)])
    uploads = np.array([present[:end].sum(dtype=np.int64) for end in ends])
    assert [row["bytes_sent"] for row in rows] == (uploads * 3_000_000_001).tolist()
    assert [row["bytes_received"] for row in rows] == (uploads * 3).tolist()
    assert [row["virtual_time"] for row in rows] == [0.0, *time[ends[1:] - 1].tolist()]


def test_a_record_without_the_new_columns_goes_on_with_them():
    """Rows of an earlier version: 4 client updates before, six more, 40 and 50 bytes each."""
    old = metrics.first_row(_TEST, 2.0) | {"client_updates": 4}
    old = {n: v for n, v in old.items() if not n.startswith("bytes") and n != "virtual_time"}
    row = metrics.next_row([old], metrics.Run(_schedule(2), (40, 50)), _info(), _TEST, 0.5, None)
    assert (row["bytes_sent"], row["bytes_received"], row["virtual_time"]) == (400, 500, None)


@pytest.mark.parametrize(("test", "name", "better"), [
    ({"loss": 1.0, "accuracy": 0.5}, "accuracy", 0.6), ({"loss": 1.0}, "loss", 0.9),
    ({"loss": 1.0, "mean_absolute_error": 2.0}, "mean_absolute_error", 1.9),
])  # fmt: skip
def test_a_lower_loss_or_error_is_the_better_score(test, name, better):
    row = {f"test_{metric}": value for metric, value in test.items()}
    assert metrics.score_name(row) == name
    assert metrics.goodness(name, better) > metrics.goodness(name, test[name])


def test_bytes_of_a_model():
    """Six numbers of four bytes, four of two, one of one."""
    params = {"a": jnp.ones((2, 3)), "b": [jnp.ones(4, jnp.bfloat16), np.int8(1)]}
    assert metrics.model_bytes(params) == 6 * 4 + 4 * 2 + 1


def test_a_lost_model_is_marked_since_the_round_that_lost_it():
    for finite, since in (([False, False], 11), ([True, False], 12)):
        lost = _info(finite=np.array(finite))
        row = _next_row(lost, test={"loss": float("nan"), "accuracy": 0.1}, round=10)
        assert (row["diverged"], row["diverged_at"]) == (True, since)


def test_a_loss_that_blew_up_is_marked_and_may_come_back():
    """Above 1,000 times the 1.5 at first."""
    for loss, before, since in (
        (1500.0, None, None), (1501.0, None, 12), (1501.0, 7, 7), (1.5, 7, None)
    ):  # fmt: skip
        row = _next_row(_info(), test={"loss": loss, "accuracy": 0.1}, round=10, diverged_at=before)
        assert (row["diverged"], row["diverged_at"]) == (since is not None, since)


@pytest.mark.parametrize(
    ("before", "most", "lost"), [(3, 5, False), (4, 5, True), (4, None, False)]
)
def test_more_rejected_uploads_than_may_be_end_a_run(before, most, lost):
    row = _next_row(_info(), max_rejected=most, rejected=before)  # two more
    assert row["diverged"] == lost == metrics.has_failed([{"rejected": before}, row], most)
