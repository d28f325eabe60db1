"""TagLogistic and tags_task against NumPy: bags of words, losses, recall, padding, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ccfl_jax as ccfl
from ccfl_jax.models import MLP, TagLogistic

IDS = np.array([[3, 1, 3, -1], [0, -1, 2, -1], [-1, -1, -1, -1]], np.int32)
TAGS = np.array([[2, -1, 0], [6, 6, -1], [1, 5, 4]], np.int32)
ALL = jnp.ones(3, bool)


def a_model(vocabulary=5, tags=7, seed=0):
    rng = np.random.default_rng([seed])
    params = {
        "table": jnp.asarray(rng.normal(size=(vocabulary, tags)), jnp.float32),
        "bias": jnp.asarray(rng.normal(size=tags), jnp.float32),
    }
    return TagLogistic(vocabulary, tags), params


def bag(ids, vocabulary):
    """Float64 `[B, vocabulary]`: counts of the tokens, divided by their number."""
    counts = np.array([[np.sum(row == word) for word in range(vocabulary)] for row in ids])
    return counts / np.maximum(counts.sum(1, keepdims=True), 1)


def as64(params):
    return jax.tree.map(lambda a: np.asarray(a, np.float64), params)


def multi_hot(tags, num_tags):
    return np.array([[float(k in row) for k in range(num_tags)] for row in tags])


def expected_losses(logits, hot):
    return (np.log1p(np.exp(logits)) - hot * logits).sum(axis=1)


def test_logits_are_the_dense_layer_on_the_bag_of_words():
    model, params = a_model()
    logits = model.apply({"params": params}, jnp.asarray(IDS))
    p = as64(params)
    np.testing.assert_allclose(logits, bag(IDS, 5) @ p["table"] + p["bias"], rtol=1e-5, atol=1e-6)


def test_gradient_is_that_of_the_dense_layer():
    model, params = a_model()
    weight = np.random.default_rng([1]).normal(size=(3, 7))
    gradient = jax.grad(
        lambda p: (model.apply({"params": p}, jnp.asarray(IDS)) * jnp.asarray(weight)).sum()
    )(params)
    np.testing.assert_allclose(gradient["table"], bag(IDS, 5).T @ weight, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient["bias"], weight.sum(0), rtol=1e-5)


def test_the_sum_for_accelerators_is_the_same(monkeypatch):
    model, params = a_model()

    def value_and_gradient(p):
        return jax.value_and_grad(
            lambda p: (model.apply({"params": p}, jnp.asarray(IDS)) ** 2).sum()
        )(p)

    on_cpu = value_and_gradient(params)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for a, b in zip(
        jax.tree.leaves(on_cpu), jax.tree.leaves(value_and_gradient(params)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_any_leading_axes_and_one_table_per_client():
    model, params = a_model()
    flat = model.apply({"params": params}, jnp.asarray(IDS))
    stacked = model.apply({"params": params}, jnp.asarray(IDS)[:, None, None])
    assert stacked.shape == (3, 1, 1, 7)
    np.testing.assert_array_equal(stacked[:, 0, 0], flat)
    two = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), params)
    both = jax.vmap(lambda p: model.apply({"params": p}, jnp.asarray(IDS)))(two)
    np.testing.assert_allclose(both[1], 2 * flat, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("illegal", [5, -3, 2**31 - 1])
def test_a_token_outside_the_vocabulary_is_nan_for_its_text_alone(illegal):
    model, params = a_model()
    ids = np.array([[0, illegal], [1, -1]], np.int32)
    logits = np.asarray(model.apply({"params": params}, jnp.asarray(ids)))
    assert np.isnan(logits[0]).all() and np.isfinite(logits[1]).all()


def test_a_word_outside_the_vocabulary_counts_in_the_length_alone():
    """Two of the four words are unknown: a quarter of the others' rows, in the step too."""
    model, params = a_model()
    ids = np.array([[-2, 3, 0, -2, -1], [-2, -2, -1, -1, -1]], np.int32)
    table, bias = (np.asarray(params[name], np.float64) for name in ("table", "bias"))
    logits = np.asarray(model.apply({"params": params}, jnp.asarray(ids)))
    np.testing.assert_allclose(logits, [(table[3] + table[0]) / 4 + bias, bias], rtol=1e-5)
    slope = np.random.default_rng(0).normal(size=(2, 7)).astype(np.float32)
    stepped = model.descend(params, jnp.asarray(ids), jnp.asarray(slope))
    expected = table.copy()
    expected[[3, 0]] -= slope[0] / 4
    np.testing.assert_allclose(stepped["table"], expected, rtol=1e-5, atol=1e-6)


def test_number_of_parameters():
    shapes = jax.eval_shape(
        TagLogistic().init, jax.random.key(0), jax.ShapeDtypeStruct((1, 8), jnp.int32)
    )
    assert sum(a.size for a in jax.tree.leaves(shapes)) == 10_000 * 500 + 500


def test_what_the_model_refuses():
    key, ids = jax.random.key(0), jnp.zeros((1, 2), jnp.int32)
    for model, x, message in (
        (TagLogistic(0, 3), ids, "vocabulary_size, num_tags .*, legal: each from 1 on"),
        (TagLogistic(3, 0), ids, "vocabulary_size, num_tags .*, legal: each from 1 on"),
        (TagLogistic(3, 3), jnp.zeros((1, 2)), "float32"),
        (TagLogistic(3, 3), jnp.zeros((), jnp.int32), r"\(\)"),
    ):
        with pytest.raises(ValueError, match=message):
            model.init(key, x)


def test_loss_and_metrics_by_hand():
    model, params = a_model()
    task = ccfl.tags_task(model, (4,), 7)
    p, hot = as64(params), multi_hot(TAGS, 7)
    logits = bag(IDS, 5) @ p["table"] + p["bias"]
    losses = expected_losses(logits, hot)
    best = np.argsort(-logits, axis=1, kind="stable")[:, :5]
    hits = np.take_along_axis(hot, best, axis=1).sum(axis=1)
    batch = {"x": jnp.asarray(IDS), "y": jnp.asarray(TAGS)}
    for mask in ([True, True, True], [True, False, True], [False, False, False]):
        real = np.array(mask)
        mean = losses[real].mean() if real.any() else 0.0
        loss = task.loss(params, batch, jnp.asarray(real), jax.random.key(0))
        assert float(loss) == pytest.approx(mean, rel=1e-5)
        metrics = task.metrics(params, batch, jnp.asarray(real))
        assert float(metrics["loss"][0]) == pytest.approx(losses[real].sum(), rel=1e-5)
        assert int(metrics["loss"][1]) == real.sum()
        assert float(metrics["recall_at_5"][0]) == hits[real].sum()
        assert int(metrics["recall_at_5"][1]) == hot[real].sum()


def with_logits(logits, tags):
    """Recall of a model whose logits are the given ones, whatever the text."""
    logits = jnp.asarray(logits, jnp.float32)
    task = ccfl.tags_task(TagLogistic(2, len(logits)), (1,), len(logits))
    params = {"table": jnp.zeros((2, len(logits))), "bias": logits}
    batch = {"x": jnp.zeros((1, 1), jnp.int32), "y": jnp.asarray([tags], jnp.int32)}
    hits, count = task.metrics(params, batch, jnp.ones(1, bool))["recall_at_5"]
    return float(hits), int(count)


def test_ties_go_to_the_lower_tag():
    assert with_logits([0, 0, 0, 0, 0, 0, 0], [4, 5]) == (1, 2)
    assert with_logits([0, 0, 0, 1, 0, 0, 0], [3, 4, 2, 6]) == (2 + 1, 4)  # 3, 0, 1, 2, 4


def test_fewer_than_five_tags_are_all_among_the_best():
    assert with_logits([1, 2, 3], [0, 2, -1]) == (2, 2)


def test_logits_that_are_nan_make_recall_nan():
    hits, count = with_logits([np.nan, 1, 2, 3, 4, 5, 6], [6])
    assert np.isnan(hits) and count == 1


@pytest.mark.parametrize("illegal", [7, -2])
def test_a_tag_outside_the_range_makes_the_loss_nan(illegal):
    model, params = a_model()
    task = ccfl.tags_task(model, (4,), 7)
    tags = np.array(TAGS)
    tags[1, 2] = illegal
    batch = {"x": jnp.asarray(IDS), "y": jnp.asarray(tags)}
    assert np.isnan(task.loss(params, batch, ALL, jax.random.key(0)))
    others = jnp.array([True, False, True])
    assert np.isfinite(task.loss(params, batch, others, jax.random.key(0)))


def test_padded_rows_change_no_bit():
    model, params = a_model()
    task = ccfl.tags_task(model, (4,), 7)
    mask, results = jnp.array([True, True, False]), []
    for x, y in ((0, 0), (99, -7)):
        batch = {
            "x": jnp.asarray(IDS).at[2].set(x),
            "y": jnp.asarray(TAGS).at[2].set(y),
        }
        value = jax.value_and_grad(task.loss)(params, batch, mask, jax.random.key(0))
        results.append(jax.tree.leaves((value, task.metrics(params, batch, mask))))
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.isfinite(a).all()


def test_a_model_of_another_width_is_refused():
    with pytest.raises(ValueError, match=r"expected \(2, 8\), found output \(2, 7\)"):
        ccfl.tags_task(TagLogistic(5, 7), (4,), 8)


def test_a_dense_model_takes_ids_as_numbers():
    task = ccfl.tags_task(MLP((3,), 7), (4,), 7)
    params = task.init(jax.random.key(0))
    batch = {"x": jnp.asarray(IDS), "y": jnp.asarray(TAGS)}
    assert np.isfinite(task.loss(params, batch, ALL, jax.random.key(0)))


def test_a_round_is_gradient_descent_on_the_dense_model():
    """One client, one full batch: x_1 = x_0 - lr * (A^T (sigmoid(z) - t)) / n."""
    model, params = a_model()
    task = ccfl.tags_task(model, (4,), 7)._replace(init=lambda key: params)
    data = ccfl.FederatedData.from_indices({"x": IDS, "y": TAGS}, [[0, 1, 2]])
    server = ccfl.cc_fedavg()
    round_fn = ccfl.build_round(task, server, optax.sgd(2.0), batch_size=3)
    schedule = ccfl.random_schedule(0, 1, 1, buffer_size=1, max_delay=0, local_work=1, randomness=1)
    state = ccfl.init_state(task, server, jax.random.key(0))
    state, info = ccfl.run_rounds(round_fn, state, schedule, data)
    p, words = as64(params), bag(IDS, 5)
    logits = words @ p["table"] + p["bias"]
    slope = (1 / (1 + np.exp(-logits)) - multi_hot(TAGS, 7)) / 3
    np.testing.assert_allclose(
        state.params["table"], p["table"] - 2 * words.T @ slope, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        state.params["bias"], p["bias"] - 2 * slope.sum(0), rtol=1e-5, atol=1e-6
    )
    assert 0 <= info.train_metrics["recall_at_5"][0] <= 1


@pytest.mark.parametrize("clients", [None, 3])
def test_the_tables_own_step_is_that_of_plain_sgd(clients):
    """Repeated words, padding, a row without words; alone, and with a table per client."""
    model, params = a_model()
    task = ccfl.tags_task(model, (4,), 7)
    batch = {"x": jnp.asarray(IDS), "y": jnp.asarray(TAGS)}
    mask, key = jnp.array([True, True, False]), jax.random.key(0)

    def own(params, rate):
        return task.descend(params, batch, mask, key, rate)

    def plain(params, rate):
        loss, gradient = jax.value_and_grad(task.loss)(params, batch, mask, key)
        metrics = task.metrics(params, batch, mask)
        return loss, metrics, jax.tree.map(lambda p, g: p - rate * g, params, gradient)

    rate = jnp.float32(0.3)
    if clients:
        params = jax.tree.map(lambda a: jnp.stack([a * k for k in range(clients)]), params)
        rate = jnp.arange(1.0, clients + 1)
        own, plain = jax.vmap(own), jax.vmap(plain)
    for a, b in zip(
        jax.tree.leaves(own(params, rate)), jax.tree.leaves(plain(params, rate)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_word_outside_the_table_spoils_its_own_step_too():
    model, params = a_model()
    task = ccfl.tags_task(model, (4,), 7)
    batch = {"x": jnp.asarray(IDS).at[0, 0].set(5), "y": jnp.asarray(TAGS)}
    loss, _, params = task.descend(params, batch, ALL, jax.random.key(0), 0.1)
    assert np.isnan(loss) and np.isnan(params["table"]).any()


def test_a_round_with_a_number_is_the_round_with_optax_sgd():
    """The first goes through the table's own step; two epochs of uneven clients, stale models."""
    rng = np.random.default_rng([8])
    x, y = rng.integers(-2, 5, (30, 4), np.int32), rng.integers(-1, 7, (30, 3), np.int32)
    data = ccfl.FederatedData.from_indices({"x": x, "y": y}, np.split(np.arange(30), [4, 11, 25]))
    task, server = ccfl.tags_task(TagLogistic(5, 7), (4,), 7), ccfl.cc_fedsgd(0.5)
    schedule = ccfl.random_schedule(0, 6, 4, buffer_size=3, max_delay=2)

    def run(local):
        round_fn = ccfl.build_round(task, server, local, batch_size=4)
        state = ccfl.init_state(task, server, jax.random.key(1), 3)
        return ccfl.run_rounds(round_fn, state, schedule, data)

    (own, own_info), (plain, info) = run(0.4), run(optax.sgd(0.4))
    for a, b in zip(jax.tree.leaves(own.params), jax.tree.leaves(plain.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(own_info.train_loss, info.train_loss, rtol=1e-5)
    assert np.abs(own.params["table"] - run(0.0)[0].params["table"]).max() > 0.01


def test_bfloat16_leaves_ids_and_parameters_whole():
    """Ids above 256 are no bfloat16 numbers; a step keeps float32 and is that of the gradient."""
    model, params = a_model(vocabulary=600)
    task = ccfl.tags_task(model, (4,), 7, compute_dtype=jnp.bfloat16)
    ids = jnp.array([[257, 511, -1, 3], [599, 300, 301, 302], [1, 1, 2, -1]], jnp.int32)
    batch, key = {"x": ids, "y": jnp.asarray(TAGS)}, jax.random.key(0)
    p = as64(params)
    losses = expected_losses(bag(ids, 600) @ p["table"] + p["bias"], multi_hot(TAGS, 7))
    loss, _, stepped = task.descend(params, batch, ALL, key, 0.1)
    assert float(loss) == pytest.approx(losses.mean(), rel=2**-7)
    gradient = jax.grad(task.loss)(params, batch, ALL, key)
    for name in params:
        assert stepped[name].dtype == gradient[name].dtype == jnp.float32
        expected = params[name] - 0.1 * gradient[name]
        np.testing.assert_allclose(stepped[name], expected, atol=2e-3)
        untouched = np.ones(600, bool)
        untouched[np.unique(ids)] = False
    np.testing.assert_array_equal(stepped["table"][untouched], params["table"][untouched])
