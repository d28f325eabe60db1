"""TagLogistic and tags_task against NumPy: bags of words, losses, recall, padding, refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import assert_trees_close, assert_trees_equal
from refusal import refused
from same_function import compiled

import ccfl_jax as ccfl
from ccfl_jax.algorithm.client_update import Client, build_local
from ccfl_jax.models import MLP, TagLogistic

pytestmark = pytest.mark.usefixtures("quickly_compiled")
IDS = np.array([[3, 1, 3, -1], [0, -1, 2, -1], [-1, -1, -1, -1]], np.int32)
TAGS = np.array([[2, -1, 0], [6, 6, -1], [1, 5, 4]], np.int32)
ALL = np.ones(3, bool)
KEY = jax.random.key(0)
MODEL = TagLogistic(5, 7)


def random_table(vocabulary=5):
    numbers = np.random.default_rng([0]).normal(size=(vocabulary + 1, 7)).astype(np.float32)
    return {"table": numbers[1:], "bias": numbers[0]}


PARAMS = random_table()


@functools.cache
def tags(vocabulary=5, **options):
    """The task of seven tags, each of its functions as one program."""
    return compiled(ccfl.tags_task(TagLogistic(vocabulary, 7), (4,), 7, **options))


def changed(array, place, value):
    array = array.copy()
    array[place] = value
    return array


@jax.jit
def logits_of(params, ids):
    return MODEL.apply({"params": params}, ids)


def expected_logits(ids, params):
    return bag(ids, len(params["table"])) @ np.float64(params["table"]) + np.float64(params["bias"])


def bag(ids, vocabulary=5):
    """Float64 `[B, vocabulary]`: counts of the tokens, divided by their number."""
    counts = np.array([[np.sum(row == word) for word in range(vocabulary)] for row in ids])
    return counts / np.maximum(counts.sum(1, keepdims=True), 1)


HOT = np.array([[float(k in row) for k in range(7)] for row in TAGS])


def expected_losses(logits):
    return (np.log1p(np.exp(logits)) - HOT * logits).sum(axis=1)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_model_and_gradient_are_those_of_a_dense_layer_on_the_bag_of_words(monkeypatch, backend):
    """On the host, in the way for accelerators too."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    weight = np.random.default_rng([1]).normal(size=(3, 7)).astype(np.float32)

    @jax.jit
    def both(params):
        logits, pull = jax.vjp(lambda p: MODEL.apply({"params": p}, IDS), params)
        return logits, pull(weight)[0]

    expected = {"table": bag(IDS).T @ weight, "bias": weight.sum(0)}
    assert_trees_close(both(PARAMS), (expected_logits(IDS, PARAMS), expected), 1e-5)


def test_any_leading_axes_and_one_table_per_client():
    flat = logits_of(PARAMS, IDS)
    stacked = logits_of(PARAMS, IDS[:, None, None])
    np.testing.assert_array_equal(stacked, flat[:, None, None])
    two = jax.tree.map(lambda a: np.stack([a, 2 * a]), PARAMS)
    both = jax.vmap(logits_of, (0, None))(two, IDS)
    np.testing.assert_allclose(both, [flat, 2 * flat], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("token", [5, -3, 2**31 - 1])
def test_a_token_outside_the_vocabulary_is_nan_for_its_text_alone(token):
    logits = np.asarray(logits_of(PARAMS, changed(IDS, (0, 1), token)))
    assert np.isnan(logits[0]).all() and np.isfinite(logits[1:]).all()
    batch = {"x": changed(IDS, (0, 1), token), "y": TAGS}
    loss, _, params = tags().descend(PARAMS, batch, ALL, KEY, 0.1)
    assert np.isnan(loss) and np.isnan(params["table"]).any()


def test_a_word_outside_the_vocabulary_counts_in_the_length_alone():
    """Two of the four words are unknown: a quarter of the others' rows, in the step too."""
    ids = np.array([[-2, 3, 0, -2], [-2, -2, -1, -1], [-1, -1, -1, -1]], np.int32)
    table, bias = (np.float64(PARAMS[name]) for name in ("table", "bias"))
    expected = [(table[3] + table[0]) / 4 + bias, bias, bias]
    np.testing.assert_allclose(logits_of(PARAMS, ids), expected, rtol=1e-5)
    slope = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
    stepped = jax.jit(MODEL.descend)(PARAMS, ids, slope)
    table[[3, 0]] -= slope[0] / 4
    assert_trees_close(stepped, {"table": table, "bias": bias - slope.sum(0)}, 1e-5)


@pytest.mark.parametrize(("model", "x", "message"), [
    (TagLogistic(3, 0), IDS, "expected vocabulary_size and num_tags >= 1, found (3, 0)"),
    (MODEL, np.float32(IDS), "expected integer ids [..., L], found input float32 (3, 4)"),
    (MODEL, np.int32(0), "expected integer ids [..., L], found input int32 ()"),
])  # fmt: skip
def test_what_the_model_refuses(model, x, message):
    refused(f"TagLogistic: {message}", model.init, KEY, x)


@pytest.mark.parametrize("mask", [[1, 1, 1], [1, 0, 1], [0, 0, 0]])
def test_loss_and_metrics_by_hand(mask):
    real = np.array(mask, bool)
    logits = expected_logits(IDS, PARAMS)
    losses = expected_losses(logits)[real]
    best = np.argsort(-logits, axis=1, kind="stable")[:, :5]
    hits = np.take_along_axis(HOT, best, axis=1).sum(axis=1)[real]
    batch = {"x": IDS, "y": TAGS}
    mean = losses.sum() / max(real.sum(), 1)
    assert float(tags().loss(PARAMS, batch, real, KEY)) == pytest.approx(mean, rel=1e-5)
    metrics = tags().metrics(PARAMS, batch, real)
    assert float(metrics["loss"][0]) == pytest.approx(losses.sum(), rel=1e-5)
    assert int(metrics["loss"][1]) == real.sum()
    assert float(metrics["recall_at_5"][0]) == hits.sum()
    assert int(metrics["recall_at_5"][1]) == HOT[real].sum()


def recall(logits, own):
    """Hits and tags of a text whose logits are the given ones, whatever its words."""
    logits = np.float32(logits)
    task = ccfl.tags_task(TagLogistic(2, len(logits)), (1,), len(logits))
    params = {"table": np.zeros((2, len(logits)), np.float32), "bias": logits}
    batch = {"x": np.zeros((1, 1), np.int32), "y": np.array([own], np.int32)}
    metrics = jax.jit(task.metrics)(params, batch, np.ones(1, bool))
    return tuple(map(float, metrics["recall_at_5"]))


def test_ties_go_to_the_lower_tag():
    assert recall([0, 0, 0, 1, 0, 0, 0], [3, 4, 2, 6]) == (2 + 1, 4)  # 3, 0, 1, 2, 4


def test_fewer_than_five_tags_are_all_among_the_best():
    assert recall([1, 2, 3], [0, 2, -1]) == (2, 2)


def test_logits_that_are_nan_make_recall_nan():
    params = {**PARAMS, "bias": changed(PARAMS["bias"], 0, np.nan)}
    hits, count = tags().metrics(params, {"x": IDS, "y": TAGS}, ALL)["recall_at_5"]
    assert np.isnan(hits) and count == HOT.sum()


@pytest.mark.parametrize("tag", [7, -2])
def test_a_tag_outside_the_range_makes_the_loss_nan(tag):
    batch = {"x": IDS, "y": changed(TAGS, (1, 2), tag)}
    assert np.isnan(tags().loss(PARAMS, batch, ALL, KEY))
    assert np.isfinite(tags().loss(PARAMS, batch, np.array([True, False, True]), KEY))


@jax.jit
def plain_step(params, batch, mask, rate):
    """Plain SGD by the gradient of the loss, as `descend`."""
    loss, gradient = jax.value_and_grad(tags().loss)(params, batch, mask, KEY)
    stepped = jax.tree.map(lambda p, g: p - rate * g, params, gradient)
    return loss, tags().metrics(params, batch, mask), stepped


def own_step(params, batch, mask, rate):
    return tags().descend(params, batch, mask, KEY, rate)


def test_padded_rows_change_no_bit():
    mask = np.array([True, True, False])
    batches = [{"x": changed(IDS, 2, x), "y": changed(TAGS, 2, y)} for x, y in ((0, 0), (99, -7))]
    for step in (plain_step, own_step):
        clean, found = (step(PARAMS, batch, mask, 0.1) for batch in batches)
        assert_trees_equal(clean, found)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(clean))


@pytest.mark.parametrize("clients", [None, 3])
def test_the_tables_own_step_is_that_of_plain_sgd(clients):
    """Repeated words, padding, a row without words; alone, and with a table per client."""
    batch, mask = {"x": IDS, "y": TAGS}, np.array([True, True, False])
    own, plain, params, rate = own_step, plain_step, PARAMS, np.float32(0.3)
    if clients:
        params = jax.tree.map(lambda a: np.stack([a * k for k in range(clients)]), params)
        rate = np.arange(1, clients + 1, dtype=np.float32)
        own, plain = (jax.jit(jax.vmap(step, (0, None, None, 0))) for step in (own, plain))
    assert_trees_close(own(params, batch, mask, rate), plain(params, batch, mask, rate), 1e-5)


def test_a_dense_model_takes_ids_as_numbers():
    task = compiled(ccfl.tags_task(MLP((3,), 7), (4,), 7))
    loss = task.loss(task.init(KEY), {"x": IDS, "y": TAGS}, ALL, KEY)
    assert np.isfinite(loss) and task.descend is None


def test_a_rate_as_local_optimiser_is_optax_sgd():
    """The first goes through the table's own step; clients of uneven sizes."""
    rng = np.random.default_rng([8])
    x, y = rng.integers(-2, 5, (12, 4), np.int32), rng.integers(-1, 7, (12, 3), np.int32)
    arrays = {"x": jnp.asarray(x), "y": jnp.asarray(y)}

    @jax.jit
    def visits(start, size, key):
        client = Client(arrays, jnp.arange(12), start, size)
        settings = {"batch_size": 4, "work_unit": "steps"}
        locals_ = [build_local(tags(), rate, **settings) for rate in (0.4, optax.sgd(0.4))]
        return [local(PARAMS, client, 2, key)[:2] for local in locals_]

    own, plain = jax.vmap(visits)(np.array([0, 3]), np.array([3, 9]), jax.random.split(KEY, 2))
    assert_trees_close(own, plain, 1e-5)
    assert np.abs(own[0]["table"]).max() > 0.01


def test_bfloat16_leaves_ids_and_parameters_whole():
    """Ids above 256 are no bfloat16 numbers; a step keeps float32 and is that of the gradient."""
    params, task = random_table(600), tags(600, compute_dtype=jnp.bfloat16)
    ids = np.array([[257, 511, -1, 3], [599, 300, 301, 302], [1, 1, 2, -1]], np.int32)
    batch = {"x": ids, "y": TAGS}
    logits = expected_logits(ids, params)
    slope = (1 / (1 + np.exp(-logits)) - HOT) / 3
    expected = {"table": bag(ids, 600).T @ slope, "bias": slope.sum(0)}
    loss, _, stepped = task.descend(params, batch, ALL, KEY, 0.1)
    assert float(loss) == pytest.approx(expected_losses(logits).mean(), rel=2**-7)
    gradient = jax.eval_shape(jax.grad(task.loss), params, batch, ALL, KEY)
    for name in params:
        assert stepped[name].dtype == gradient[name].dtype == jnp.float32
        np.testing.assert_allclose(stepped[name], params[name] - 0.1 * expected[name], atol=2e-3)
    untouched = np.setdiff1d(np.arange(600), ids)
    np.testing.assert_array_equal(stepped["table"][untouched], params["table"][untouched])
