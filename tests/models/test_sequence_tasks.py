"""next_token_task and the recurrent models, against NumPy: padding, unscored tokens, refusals."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import assert_trees_close, assert_trees_equal
from refusal import refused
from same_function import compiled, random_params

import ccfl_jax as ccfl
from ccfl_jax.models import CharLSTM, WordLSTM, sequence_tasks

pytestmark = pytest.mark.usefixtures("quickly_compiled")
KEY = jax.random.key(0)
TOKENS, LENGTH, UNKNOWN, END = 6, 4, 4, 5
X = np.array([[1, 2, 3, 1], [2, 5, 0, 0], [3, 3, 4, 1]], np.int32)
Y = np.array([[2, 3, 1, END], [END, 0, 0, 0], [3, UNKNOWN, 1, 2]], np.int32)
MASK = np.array([True, True, False])


class Table(nn.Module):
    """Logits of the next token by the last one alone: rows of a table."""

    @nn.compact
    def __call__(self, ids):
        return self.param("table", nn.initializers.normal(1.0), (TOKENS, TOKENS))[ids]


@functools.cache
def problem(**options):
    task = compiled(ccfl.next_token_task(Table(), (LENGTH,), TOKENS, **options))
    return task, {"table": np.random.default_rng(0).normal(size=(TOKENS, TOKENS))}


def by_hand(table, x, y, padding=0, unscored=()):
    """Float64: loss, its gradient, hits and scored targets of the real rows."""
    real = y != padding
    rows, targets = x[real], y[real]
    p = np.exp(table[rows]) / np.exp(table[rows]).sum(1, keepdims=True)
    losses = -np.log(p[np.arange(len(rows)), targets])
    slope = p - np.eye(TOKENS)[targets]
    gradient = np.zeros_like(table)
    np.add.at(gradient, rows, slope / len(rows))
    scored = ~np.isin(targets, unscored)
    right = (table[rows].argmax(1) == targets) & scored
    return losses, gradient, right.sum(), scored.sum()


@pytest.mark.parametrize("unscored", [(), (UNKNOWN, END)])
@pytest.mark.parametrize("padding", [0, 3, -1])
def test_loss_gradient_and_metrics_by_hand(padding, unscored):
    """The mean over tokens, not rows: the first row has up to four, the second one."""
    task, params = problem(padding=padding, unscored=unscored)
    losses, gradient, right, scored = by_hand(params["table"], X[:2], Y[:2], padding, unscored)
    batch = {"x": X, "y": Y}
    seen, found = jax.value_and_grad(task.observe, has_aux=True)(params, batch, MASK, KEY)
    loss, metrics = seen
    assert float(loss) == pytest.approx(losses.mean(), rel=1e-5)
    assert_trees_close(found, {"table": gradient}, 1e-5)
    for own in (metrics, task.metrics(params, batch, MASK)):
        assert float(own["loss"][0]) == pytest.approx(losses.sum(), rel=1e-5)
        assert [*map(float, (own["loss"][1], *own["accuracy"]))] == [len(losses), right, scored]


def test_a_target_that_is_the_next_token_of_the_whole_row():
    """As of LEAF's Shakespeare, "y" [B]: the output of the last place alone."""
    task, params = problem()
    y = np.array([2, 0, 1], np.int32)  # the second row's is padding
    losses, gradient, right, scored = by_hand(params["table"], X[[0, 2], -1], y[[0, 2]])
    batch, every = {"x": X, "y": y}, np.ones(3, bool)
    loss, found = jax.value_and_grad(task.loss)(params, batch, every, KEY)
    assert float(loss) == pytest.approx(losses.mean(), rel=1e-5)
    assert_trees_close(found, {"table": gradient}, 1e-5)
    metrics = task.metrics(params, batch, every)
    assert [*map(float, metrics["accuracy"])] == [right, scored] and scored == 2


def test_what_does_not_count_changes_no_bit():
    """Padded rows with ids that are none, and what the model says at padding."""
    task, params = problem(unscored=(UNKNOWN, END))

    def outcome(x, y):
        batch = {"x": x, "y": y}
        step = jax.value_and_grad(task.observe, has_aux=True)
        return step(params, batch, MASK, KEY), task.metrics(params, batch, MASK)

    x, y = X.copy(), Y.copy()
    x[2], y[2], x[1, 1:] = 99, -7, 4
    clean = outcome(X, Y)
    assert_trees_equal(clean, outcome(x, y))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(clean))


@pytest.mark.parametrize("logits", [1, TOKENS * LENGTH * 2])
def test_an_evaluation_in_groups_of_rows_is_the_same(monkeypatch, logits):
    """Groups of one and of two of three rows; the last group of two has one."""
    plain, params = problem(unscored=(END,))
    monkeypatch.setattr(sequence_tasks, "_LOGITS", logits)
    task = compiled(ccfl.next_token_task(Table(), (LENGTH,), TOKENS, unscored=(END,)))
    for mask in (MASK, np.ones(3, bool), ~MASK):
        batch = {"x": X, "y": Y}
        found, expected = (one.metrics(params, batch, mask) for one in (task, plain))
        assert_trees_close(found, expected, 1e-6)


def test_batches_without_targets_have_loss_0_and_no_gradient():
    task, params = problem()
    for y, mask in ((np.zeros_like(Y), np.ones(3, bool)), (Y, np.zeros(3, bool))):
        loss, slope = jax.value_and_grad(task.loss)(params, {"x": X, "y": y}, mask, KEY)
        assert loss == 0 and (slope["table"] == 0).all()


@pytest.mark.parametrize("target", [-1, TOKENS])
def test_a_target_outside_the_tokens_makes_the_loss_nan(target):
    task, params = problem()
    y = Y.copy()
    y[0, 0] = target
    loss, slope = jax.value_and_grad(task.loss)(params, {"x": X, "y": y}, MASK, KEY)
    assert np.isnan(loss) and np.isnan(slope["table"]).any()
    assert task.labels == (("y", 0, TOKENS - 1),)


def test_logits_that_are_no_numbers_make_the_accuracy_nan():
    task, params = problem()
    table = params["table"].copy()
    table[1, 0] = np.nan
    assert np.isnan(task.metrics({"table": table}, {"x": X, "y": Y}, MASK)["accuracy"][0])


@pytest.mark.parametrize(("words", "message"), [
    ({"padding": 6}, "padding: expected below num_tokens=6, found 6"),
    ({"padding": -2}, "padding: expected an integer >= -1, found -2"),
    ({"unscored": (1, 9)}, "unscored: expected below num_tokens=6, found 9"),
    ({"num_tokens": 0}, "num_tokens: expected an integer >= 1, found 0"),
    ({"num_tokens": 5}, "model: expected output (2, 4, 5) for 2 rows, found (2, 4, 6)"),
])  # fmt: skip
def test_what_the_task_refuses(words, message):
    words = {"num_tokens": TOKENS, **words}
    refused(message, lambda: ccfl.next_token_task(Table(), (LENGTH,), **words))


@pytest.mark.parametrize(("y", "message"), [
    (Y[:, :3], "y: expected (3, 4) or [B], found shape (3, 3)"),
    (np.float32(Y), "y: expected integers [B, L] or [B], found float32 (3, 4)"),
    (Y[..., None], "y: expected integers [B, L] or [B], found int32 (3, 4, 1)"),
])  # fmt: skip
def test_batches_that_are_refused(y, message):
    task, params = problem()
    refused(message, task.loss, params, {"x": X, "y": y}, MASK, KEY)
    refused("arrays: expected x and y, found no y", task.loss, params, {"x": X}, MASK, KEY)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(params, x):
    """Float64 `[b, L, width] -> [b, L, hidden]`: the equations of an LSTM cell."""
    weight = {name: np.float64(one["kernel"]) for name, one in params.items()}
    bias = {name: np.float64(params[f"h{name}"]["bias"]) for name in "ifgo"}
    h = c = np.zeros((len(x), len(weight["hi"])))
    outputs = []
    for t in range(x.shape[1]):
        i, f, g, o = (x[:, t] @ weight[f"i{n}"] + h @ weight[f"h{n}"] + bias[n] for n in "ifgo")
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return np.stack(outputs, axis=1)


def dense(params, x):
    return x @ np.float64(params["kernel"]) + np.float64(params["bias"])


def test_the_models_by_hand():
    char, word = CharLSTM(TOKENS, 5), WordLSTM(TOKENS, 5)
    own, others = random_params(char, X)["params"], random_params(word, X)["params"]
    x = np.float64(own["embedding"]["embedding"])[X]
    expected = dense(own["dense"], lstm(own["lstm2"], lstm(own["lstm1"], x)))
    np.testing.assert_allclose(char.apply({"params": own}, X), expected, rtol=1e-4, atol=1e-5)
    x = lstm(others["lstm"], np.float64(others["embedding"]["embedding"])[X])
    expected = dense(others["dense2"], dense(others["dense1"], x))
    np.testing.assert_allclose(word.apply({"params": others}, X), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", [CharLSTM(TOKENS, 3), WordLSTM(TOKENS, 3)])
@pytest.mark.parametrize("token", [-1, TOKENS])
def test_a_token_outside_the_vocabulary_is_nan_from_its_place_on(model, token):
    x = X.copy()
    x[0, 2] = token
    logits = np.asarray(model.apply(random_params(model, X), x))
    assert np.isnan(logits[0, 2:]).all()
    assert np.isfinite(logits[0, :2]).all() and np.isfinite(logits[1:]).all()


@pytest.mark.parametrize(("model", "x", "message"), [
    (CharLSTM(0), X, "CharLSTM: expected vocabulary_size and hidden >= 1, found (0, 256)"),
    (WordLSTM(), np.float32(X), "WordLSTM: expected integer ids [b, L], found ... float32 (3, 4)"),
    (CharLSTM(), X[0], "CharLSTM: expected integer ids [b, L], found input int32 (4,)"),
])  # fmt: skip
def test_what_the_models_refuse(model, x, message):
    refused(message, model.init, KEY, x)


def test_a_character_model_learns_a_sequence_that_repeats():
    """The next of 1 2 3 1 2 3 ... is known: a client of such rows reaches accuracy 1."""
    rows = np.stack([np.resize([1, 2, 3], 13), np.resize([3, 1, 2], 13)]).astype(np.int32)
    arrays = {"x": rows[:, :-1], "y": rows[:, 1:]}
    task = ccfl.next_token_task(CharLSTM(4, 16), (12,), 4)
    data = ccfl.FederatedData.from_indices(arrays, [np.array([0]), np.array([1])])
    schedule = ccfl.random_schedule(0, 40, 2, buffer_size=2, max_delay=0, local_work=10)
    made = ccfl.simulation(task, ccfl.cc_fedsgd(10.0), jnp.float32(1.0), batch_size=2)
    state, _ = ccfl.run_rounds(made.round, made.init(KEY, history_length=1), schedule, data)
    assert ccfl.evaluate(task, state.params, arrays)["accuracy"] == 1.0
