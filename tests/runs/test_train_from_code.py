"""ccfl.train: the loop from code, its rows, how it ends and goes on; callbacks and targets."""

import os
import signal

import jax
import numpy as np
import problems
import pytest
from event_files import events, numbers_of
from problems import assert_trees_equal
from refusal import refused

import ccfl_jax as ccfl
from ccfl_jax import callbacks
from ccfl_jax.runs import targets

TASK = problems.softmax_task()
DATA, ARRAYS, _ = problems.federated([7, 5, 9, 12])
SIMULATION = ccfl.simulation(TASK, ccfl.cc_fedams(0.05), 0.1, batch_size=4)
SCHEDULE = ccfl.random_schedule(0, 25, 4, 3, max_delay=2)
CLOCKS = {"seconds", "compile_seconds"}


def trained(schedule=SCHEDULE, simulation=SIMULATION, eval_every=10, **more):
    more = {"progress": False, **more}
    return ccfl.train(simulation, schedule, DATA, ARRAYS, eval_every=eval_every, **more)


def timeless(rows):
    return [{name: value for name, value in row.items() if name not in CLOCKS} for row in rows]


def test_its_rows_are_evaluations_of_the_rounds_run():
    """By hand: rounds 0, 10, 20 and the last, 25; sums since round 0, means since the last row."""
    state, rows = trained()
    by_hand = SIMULATION.init(jax.random.key(0), history_length=3)
    assert [row["round"] for row in rows] == [0, 10, 20, 25]
    for row, stop in zip(rows, (0, 10, 20, 25), strict=True):
        begin = int(by_hand.round)
        by_hand, info = ccfl.run_rounds(
            SIMULATION.round, by_hand, SCHEDULE.rounds(begin, stop), DATA
        )
        scores = ccfl.evaluate(TASK, by_hand.params, ARRAYS)
        assert {name: row[f"test_{name}"] for name in scores} == scores
        if stop:
            assert row["train_loss"] == np.mean(info.train_loss, dtype=np.float64)
            assert row["mean_staleness"] == info.staleness[info.present].mean()
    nbytes = 4 * (problems.FEATURES + 1) * problems.CLASSES
    assert rows[-1]["bytes_sent"] == 25 * 3 * nbytes == rows[-1]["client_updates"] * nbytes
    assert_trees_equal(state, by_hand)
    assert trained(sent=(5, 7))[1][-1]["bytes_received"] == 25 * 3 * 7


def test_a_key_and_a_state_of_ones_own_are_used_and_kept():
    key = jax.random.key(3)
    first = SIMULATION.init(key, history_length=3)
    assert_trees_equal(trained(state=first)[0], trained(key=key)[0])
    assert int(first.round) == 0 and not first.params["w"].is_deleted()


@pytest.mark.parametrize("plan", ["planned", "remembered"])
def test_plans_have_the_history_and_memories_that_they_need(plan):
    rule = ccfl.systems.scaffold(0.1)
    simulation = ccfl.simulation(TASK, ccfl.cc_fedsgd(1.0), 0.1, normalise="none", rule=rule)
    whole, rows = trained(simulation=simulation)
    own, found = trained(getattr(SCHEDULE, plan)(), simulation)
    assert_trees_equal(own.params, whole.params)
    assert timeless(found) == timeless(rows)


def interrupts():
    os.kill(os.getpid(), signal.SIGINT)


def raises():
    raise KeyboardInterrupt


@pytest.mark.parametrize("end", [interrupts, raises, lambda: True])
def test_it_ends_with_what_is_done_and_goes_on_there(end):
    whole, rows = trained()
    handler = signal.getsignal(signal.SIGINT)
    stop = lambda rows, state: end() if rows[-1]["round"] == 10 else None  # noqa: E731
    state, begun = trained(callbacks=[stop])
    assert [row["round"] for row in begun] == [0, 10] and int(state.round) == 10
    assert signal.getsignal(signal.SIGINT) is handler
    end, every = trained(state=state, rows=begun)
    assert_trees_equal(end, whole)
    assert timeless(every) == timeless(rows)
    assert begun == every[:2]


def test_an_interrupt_in_a_piece_is_evaluated_where_it_ended(monkeypatch):
    """Pieces of 4 rounds, the signal in the second."""
    monkeypatch.setattr("ccfl_jax.runs.train_loop.PIECE", 4)
    pieces = []

    def counted(*args, **kwargs):
        pieces.append(1)
        if len(pieces) == 3:  # the first has no rounds
            interrupts()
        return ccfl.run_rounds(*args, **kwargs)

    monkeypatch.setattr("ccfl_jax.runs.train.run_rounds", counted)
    state, rows = trained()
    assert [row["round"] for row in rows] == [0, 8] and int(state.round) == 8
    whole, _ = trained(SCHEDULE.rounds(0, 8))
    assert_trees_equal(state.params, whole.params)


def test_a_lost_model_ends_it():
    simulation = ccfl.simulation(TASK, ccfl.cc_fedsgd(1e38), 1.0, batch_size=4)
    _, rows = trained(simulation=simulation)
    assert [row["round"] for row in rows] == [0, 10] and rows[-1]["test_loss"] is None


def test_a_line_at_each_evaluation_where_there_is_no_terminal(capsys):
    trained(progress=True)
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line]
    assert not out and [line.split(":")[0] for line in lines] == [
        f"round {t} of 25" for t in (0, 10, 20, 25)
    ]
    assert "test accuracy 0." in lines[1] and "train loss" in lines[1]
    trained()
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"simulation": SIMULATION.round},
            "simulation: expected what ccfl.simulation returns, ...",
        ),
        ({"schedule": 3}, "schedule: expected a ccfl.Schedule, found ..."),
        ({"eval_every": 0}, "eval_every: expected ..."),
        ({"rows": [{"round": 5}]}, "rows: expected those until round 0, the state's, found ... 5"),
    ],
)
def test_wrong_arguments_are_refused(wrong, message):
    refused(message, trained, **wrong)


def test_a_target_is_read_and_met():
    assert targets.target(" accuracy >= .5 ") == targets.Target("accuracy", True, 0.5)
    assert targets.target("train_loss<=1e-2") == targets.Target("train_loss", False, 0.01)
    assert targets.target("accuracy>=0e9").value == 0
    beyond = ("accuracy>=1e-400", "accuracy>=1e400")
    for text in ("accuracy", "accuracy>0.5", "accuracy>=x", "accuracy>=", ">=1", *beyond):
        refused("target: expected NAME>=NUMBER or NAME<=NUMBER, found ...", targets.target, text)
    high, low = targets.target("accuracy>=0.5"), targets.target("test_loss<=1")
    rows = [{"test_accuracy": a, "test_loss": b} for a, b in ((0.4, 2), (None, None), (0.5, 1))]
    assert targets.first(rows, high) is rows[2] is targets.first(rows, low)
    assert targets.first(rows[:2], high) is None


def test_training_ends_at_the_target():
    _, rows = trained(eval_every=1)
    value = rows[7]["test_loss"]
    first = next(k for k, row in enumerate(rows) if row["test_loss"] <= value)
    _, own = trained(eval_every=1, callbacks=[callbacks.ToTarget(f"loss<={value!r}")])
    assert timeless(own) == timeless(rows[: first + 1])
    unknown = [callbacks.ToTarget("acc>=1")]
    refused(
        "target: expected a metric of the task, accuracy, loss, found 'acc'",
        trained,
        callbacks=unknown,
    )


def test_early_stopping_counts_evaluations_without_a_better_score():
    def ended(scores, **how):
        rows, stop = [], callbacks.EarlyStopping(patience=2, **how)
        for k, score in enumerate(scores):
            rows.append({"test_loss": score, "test_accuracy": score})
            if stop(rows, None):
                return k
        return None

    assert ended([3, 2, 2.5, 1, 1, 1.5]) == 5
    assert ended([3, 2, None, 1, 0.5]) is None
    assert ended([1, 2, 3, 3, 3], column="test_accuracy") == 4
    assert ended([1, 0.95, 0.9, 0.5], least=0.2) == 2
    assert ended([1, 2, 3], is_better_high=True) is None
    refused("patience: expected ...", callbacks.EarlyStopping, patience=0)
    refused("column: expected ..., found 'no'", ended, [1], column="no")


def test_tensorboard_has_the_numbers_of_every_row(tmp_path):
    pytest.importorskip("tensorboardX")
    board = callbacks.TensorBoard(tmp_path / "events")
    _, rows = trained(callbacks=[board])
    found = events(tmp_path / "events")
    own = [(step, value) for tag, step, value in found if tag == "test/accuracy"]
    assert own == [(row["round"], np.float32(row["test_accuracy"])) for row in rows]
    assert ("client_updates", 25, 75.0) in found
    assert {step for tag, step, _ in found if tag == "train/loss"} == {10, 20, 25}


def test_tensorboard_has_one_run_at_a_time(tmp_path):
    """What goes on adds its rows, also for another callback; another run takes the file's place."""
    rows = [{"round": k, "test_loss": 0.5 * k, "seconds": None} for k in range(4)]
    others = [row | {"test_loss": -1.0} for row in rows]
    board = callbacks.TensorBoard(tmp_path)
    for given in (rows[:2], rows[:4], rows[:1], rows[:3]):
        board(given)
        assert events(tmp_path) == numbers_of(given)
    (file,) = tmp_path.iterdir()
    before = file.read_bytes()
    for given in (rows[:4], [*rows[:2], *others[2:]], others, rows[:3]):
        callbacks.TensorBoard(tmp_path)(given)
        assert [*tmp_path.iterdir()] == [file] and events(tmp_path) == numbers_of(given)
    assert file.read_bytes() == before
    for damage in (before[:-3], b"", b"\xff" * 50):
        file.write_bytes(damage)
        callbacks.TensorBoard(tmp_path)(rows[:3])
        assert file.read_bytes() == before


def test_the_first_rejected_uploads_are_a_warning():
    """Client 2's samples are not finite: its slots are rejected, and said in the first row."""
    arrays = {**ARRAYS, "x": np.array(ARRAYS["x"])}
    begin, end = np.asarray(DATA.offsets)[2:4]
    arrays["x"][np.asarray(DATA.indices)[begin:end]] = np.nan
    data = ccfl.FederatedData(arrays, DATA.indices, DATA.offsets)
    slots = int((SCHEDULE.client[:10] == 2).sum())
    said = f"uploads: expected finite uploads, found {slots} rejected before round 10, of clients 2"
    with pytest.warns(UserWarning) as caught:
        _, rows = ccfl.train(SIMULATION, SCHEDULE, data, ARRAYS, progress=False)
    assert [str(one.message) for one in caught] == [f"{said}; later ones are only in the rows"]
    assert rows[2]["rejected"] > 0


def test_a_task_and_callbacks_that_cannot_be_used_are_refused_before_training():
    def train(task=TASK, **more):
        return ccfl.train(SIMULATION._replace(task=task), SCHEDULE, DATA, ARRAYS, **more)

    def unlost(params, batch, mask):
        return {"error": (mask.sum(), mask.sum())}

    task = TASK._replace(metrics=unlost)
    refused("task.metrics: expected loss among them, found error", train, task)
    task = TASK._replace(loss=lambda params: 0.0)
    refused("task.loss: expected a function of parameters, ... found TypeError: ...", train, task)
    task = TASK._replace(init=lambda: 0.0)
    refused("task.init: expected a function of a key, found TypeError: ...", train, task)
    one = callbacks.ToTarget("accuracy>=0.9")
    refused("callbacks: expected a list of functions, found ToTarget...", train, callbacks=one)
    refused("callbacks: expected functions, found 3", train, callbacks=[3])
    text = refused("callbacks: expected functions, found {'x': ...", train, callbacks=[ARRAYS])
    assert len(text) < 130  # of data the beginning alone
