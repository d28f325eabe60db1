"""classification_task: losses and metrics by hand, padding, scaling, refusals."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import ccfl_jax as ccfl
from ccfl_jax.algorithm.client_update import Client, build_local
from ccfl_jax.data.image_transforms import crop_and_flip, prepare_images
from ccfl_jax.models import CNN, MLP, Logistic, McMahanCNN, ResNet18, ResNet20


class Plain(nn.Module):
    classes: int = 3

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.classes)(x.reshape(x.shape[0], -1))


class Normed(nn.Module):
    """Divides by the norm of its input: the derivative at zero does not exist."""

    @nn.compact
    def __call__(self, x):
        x = x.reshape(x.shape[0], -1)
        return nn.Dense(3)(x / jnp.linalg.norm(x, axis=-1, keepdims=True))


class Dropping(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool):
        return nn.Dense(3)(nn.Dropout(0.5, deterministic=not train)(x))


class WithBatchNorm(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.BatchNorm(use_running_average=False)(nn.Dense(3)(x))


class WithBatchNormAndTrain(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.BatchNorm(use_running_average=not train)(nn.Dense(3)(x))


class NnxPlain(nnx.Module):
    def __init__(self, rngs):
        self.dense = nnx.Linear(4, 3, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.dense(self.dropout(x))


class NnxBatchNorm(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(4, rngs=rngs)

    def __call__(self, x):
        return self.norm(x)


def batch_of(rows=5, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "x": jnp.asarray(rng.normal(size=(rows, 4)), jnp.float32),
        "y": jnp.asarray(rng.integers(0, 3, rows), jnp.int32),
    }


def test_loss_and_metrics_by_hand():
    task = ccfl.classification_task(Plain(), (4,), 3)
    params, batch = task.init(jax.random.key(0)), batch_of()
    mask = jnp.array([True, True, False, True, False])
    dense = jax.tree.map(lambda a: np.asarray(a, np.float64), params["Dense_0"])
    logits = np.asarray(batch["x"], np.float64) @ dense["kernel"] + dense["bias"]
    y, real = np.asarray(batch["y"]), np.asarray(mask)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(5), y]
    assert float(task.loss(params, batch, mask, jax.random.key(1))) == pytest.approx(
        losses[real].mean(), rel=1e-5
    )
    metrics = task.metrics(params, batch, mask)
    assert float(metrics["loss"][0]) == pytest.approx(losses[real].sum(), rel=1e-5)
    assert float(metrics["accuracy"][0]) == (logits.argmax(1) == y)[real].sum()
    assert int(metrics["loss"][1]) == int(metrics["accuracy"][1]) == 3


@pytest.mark.parametrize("model", [Plain(), Normed()], ids=["plain", "norm"])
@pytest.mark.parametrize("junk", [np.nan, np.inf, 0.0, 1e30])
def test_padded_rows_change_no_bit(model, junk):
    task = ccfl.classification_task(model, (4,), 3)
    params, batch = task.init(jax.random.key(0)), batch_of()
    mask = jnp.array([False, True, True, False, True])
    dirty = {
        "x": jnp.where(mask[:, None], batch["x"], junk),
        "y": jnp.where(mask, batch["y"], -12345),
    }
    both = jax.jit(jax.value_and_grad(task.loss))
    clean, found = (both(params, b, mask, jax.random.key(1)) for b in (batch, dirty))
    for a, b in zip(*map(jax.tree.leaves, (clean, found)), strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_array_equal(a, b)
    clean, found = (task.metrics(params, b, mask) for b in (batch, dirty))
    for a, b in zip(*map(jax.tree.leaves, (clean, found)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_batch_of_padding_has_loss_zero_and_a_finite_gradient():
    task = ccfl.classification_task(Plain(), (4,), 3)
    params = task.init(jax.random.key(0))
    batch = {"x": jnp.full((2, 4), jnp.nan), "y": jnp.array([7, -1])}
    loss, gradient = jax.value_and_grad(task.loss)(params, batch, jnp.zeros(2, bool), None)
    assert float(loss) == 0
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(gradient))


def test_bytes_are_scaled_once_and_floats_never():
    task = ccfl.classification_task(Plain(), (4,), 3)
    params = task.init(jax.random.key(0))
    raw = np.random.default_rng(0).integers(0, 256, (5, 4)).astype(np.uint8)
    raw[0, 0], raw[1, 1] = 0, 255
    y, mask = jnp.zeros(5, jnp.int32), jnp.ones(5, bool)
    from_bytes = task.loss(params, {"x": jnp.asarray(raw), "y": y}, mask, jax.random.key(0))
    scaled = jnp.asarray(raw / 255, jnp.float32)
    from_floats = task.loss(params, {"x": scaled, "y": y}, mask, jax.random.key(0))
    assert float(from_bytes) == pytest.approx(float(from_floats), rel=1e-6)


@pytest.mark.parametrize("label", [3, -1, 2**31 - 1])
def test_an_illegal_label_is_never_taken_for_another(label):
    task = ccfl.classification_task(Plain(), (4,), 3)
    params, batch = task.init(jax.random.key(0)), batch_of()
    batch["y"] = batch["y"].at[2].set(label)
    assert jnp.isnan(task.loss(params, batch, jnp.ones(5, bool), jax.random.key(0)))
    assert np.isnan(ccfl.evaluate(task, params, batch, 5)["loss"])


def test_a_model_of_nans_has_no_accuracy():
    task = ccfl.classification_task(Plain(), (4,), 3)
    params = jax.tree.map(lambda a: a * jnp.nan, task.init(jax.random.key(0)))
    found = ccfl.evaluate(task, params, {"x": np.ones((6, 4)), "y": np.zeros(6, int)}, 4)
    assert np.isnan(found["loss"]) and np.isnan(found["accuracy"])


def test_ties_go_to_the_first_class():
    task = ccfl.classification_task(Plain(10), (4,), 10)
    params = jax.tree.map(jnp.zeros_like, task.init(jax.random.key(0)))
    arrays = {"x": np.ones((1000, 4), np.float32), "y": np.arange(1000) % 10}
    assert ccfl.evaluate(task, params, arrays, 300)["accuracy"] == 0.1


def test_dropout_follows_the_key_in_training_only():
    for model in (Dropping(), NnxPlain):
        task = ccfl.classification_task(model, (4,), 3)
        params, batch, mask = task.init(jax.random.key(0)), batch_of(), jnp.ones(5, bool)
        losses = [float(task.loss(params, batch, mask, jax.random.key(k))) for k in (0, 0, 1)]
        assert losses[0] == losses[1] != losses[2]
        first, second = (task.metrics(params, batch, mask)["loss"][0] for _ in range(2))
        assert first == second


def test_nnx_modules_and_factories():
    batch, mask = batch_of(), jnp.ones(5, bool)
    made = ccfl.classification_task(NnxPlain, (4,), 3)
    first, same, other = (made.init(jax.random.key(k)) for k in (0, 0, 1))
    np.testing.assert_array_equal(first["dense"]["kernel"], same["dense"]["kernel"])
    assert (first["dense"]["kernel"] != other["dense"]["kernel"]).any()
    logits = batch["x"] @ first["dense"]["kernel"] + first["dense"]["bias"][None]
    losses = jax.nn.logsumexp(logits, axis=1) - logits[jnp.arange(5), batch["y"]]
    found = made.metrics(first, batch, mask)["loss"][0]
    assert float(found) == pytest.approx(float(losses.sum()), rel=1e-5)

    module = NnxPlain(nnx.Rngs(7))
    given = ccfl.classification_task(module, (4,), 3)
    for k in (0, 1):
        np.testing.assert_array_equal(
            given.init(jax.random.key(k))["dense"]["kernel"], module.dense.kernel[...]
        )
    batched = jax.vmap(given.loss, (None, None, None, 0))(
        given.init(None), batch, mask, jax.random.split(jax.random.key(0), 2)
    )
    assert batched.shape == (2,)


@pytest.mark.parametrize(
    "model",
    [WithBatchNorm(), WithBatchNormAndTrain(), NnxBatchNorm, NnxBatchNorm(nnx.Rngs(0))],
    ids=["linen", "linen train", "nnx factory", "nnx module"],
)
def test_batch_statistics_are_refused_with_the_cure(model):
    with pytest.raises(ValueError, match=r"model: found .*(batch_stats|BatchStat).*GroupNorm"):
        ccfl.classification_task(model, (4,), 3)


def test_wrong_width_is_refused():
    with pytest.raises(ValueError, match=r"model: expected \(2, 10\), found output \(2, 3\)"):
        ccfl.classification_task(Plain(), (4,), 10)


@pytest.mark.parametrize("model", [Plain(), NnxPlain, Dropping()], ids=["linen", "nnx", "drops"])
def test_loss_and_metrics_of_one_pass_are_those_of_two(model):
    """Where dropout makes training and evaluation two passes there is none."""
    task = ccfl.classification_task(model, (4,), 3)
    if model is not NnxPlain and isinstance(model, Plain):
        params, batch, mask = task.init(jax.random.key(0)), batch_of(), jnp.arange(5) < 3
        key = jax.random.key(1)
        loss, metrics = jax.jit(task.observe)(params, batch, mask, key)
        assert float(loss) == pytest.approx(float(task.loss(params, batch, mask, key)), rel=1e-6)
        expected = task.metrics(params, batch, mask)
        for a, b in zip(jax.tree.leaves(metrics), jax.tree.leaves(expected), strict=True):
            assert float(a) == pytest.approx(float(b), rel=1e-6)
    else:
        assert task.observe is None


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (CNN(), (28, 28, 1)),
        (McMahanCNN(), (28, 28, 1)),
        (ResNet18(), (32, 32, 3)),
        (ResNet20(), (32, 32, 3)),
        (MLP((8,), 10), (4,)),
        (Logistic(10), (4,)),
    ],
    ids=["cnn", "mcmahan", "resnet18", "resnet20", "mlp", "logistic"],
)
def test_our_models_need_one_pass(model, shape):
    assert ccfl.classification_task(model, shape, 10).observe is not None


def rounded(a):
    return np.asarray(jnp.asarray(a).astype(jnp.bfloat16).astype(jnp.float32), np.float64)


@pytest.mark.parametrize("model", [Plain(), NnxPlain], ids=["linen", "nnx"])
def test_bfloat16_rounds_what_the_model_sees_and_nothing_else(model):
    """The expected loss has rounded weights and inputs; logits carry the rounding of bfloat16."""
    task = ccfl.classification_task(model, (4,), 3, compute_dtype=jnp.bfloat16)
    exact = ccfl.classification_task(model, (4,), 3)
    params, batch, mask = task.init(jax.random.key(0)), batch_of(), jnp.ones(5, bool)
    dense = next(iter(params.values()))
    assert dense["kernel"].dtype == jnp.float32

    logits = rounded(batch["x"]) @ rounded(dense["kernel"]) + rounded(dense["bias"])
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    loss = -log_p[np.arange(5), np.asarray(batch["y"])].sum()
    found = task.metrics(params, batch, mask)["loss"][0]
    assert float(found) == pytest.approx(loss, rel=2**-7)
    assert float(found) != float(exact.metrics(params, batch, mask)["loss"][0])

    gradient = jax.grad(task.loss)(params, batch, mask, jax.random.key(0))
    assert {a.dtype for a in jax.tree.leaves(gradient)} == {jnp.dtype(jnp.float32)}


def test_small_steps_in_bfloat16_are_not_lost():
    """Weights near 1 and steps of about 1e-4, a fiftieth of what bfloat16 can tell from 1."""
    task = ccfl.classification_task(Plain(), (4,), 3, compute_dtype=jnp.bfloat16)
    task = task._replace(
        init=lambda key: {"Dense_0": {"kernel": jnp.ones((4, 3)), "bias": jnp.ones(3)}}
    )
    x, y = np.ones((8, 4), np.float32), np.zeros(8, np.int32)
    data = ccfl.FederatedData.from_indices({"x": x, "y": y}, [np.arange(8)])
    server = ccfl.cc_fedavg()
    round_fn = ccfl.build_round(task, server, 3e-4, batch_size=8, normalise="none")
    state = ccfl.init_state(task, server, jax.random.key(0))
    schedule = ccfl.random_schedule(0, 5, 1, buffer_size=1, max_delay=0, local_work=1, randomness=1)
    state, _ = ccfl.run_rounds(round_fn, state, schedule, data)
    # Equal weights give probabilities of 1/3: class 0 gains 2/3 of the rate in a step, five times.
    kernel = np.asarray(state.params["Dense_0"]["kernel"])
    np.testing.assert_allclose(kernel[:, 0] - 1, 5 * 3e-4 * 2 / 3, rtol=0.02)
    np.testing.assert_allclose(kernel[:, 1] - 1, -5 * 3e-4 / 3, rtol=0.02)


def test_a_compute_dtype_that_is_no_float_is_refused():
    with pytest.raises(ValueError, match="compute_dtype: expected a float dtype, found .*int8.*"):
        ccfl.classification_task(Plain(), (4,), 3, compute_dtype=jnp.int8)


IMAGE = (6, 7, 2)  # so large that no view is all border


def images_of(rows=5, seed=0):
    rng = np.random.default_rng([seed])
    return {
        "x": jnp.asarray(rng.integers(0, 256, (rows, *IMAGE)), jnp.uint8),
        "y": jnp.asarray(rng.integers(0, 3, rows), jnp.int32),
    }


def augmented_task(model=None):
    prepare = prepare_images(((0.4, 0.6), (0.2, 0.3)), augment=True)
    return ccfl.classification_task(model or Plain(), IMAGE, 3, prepare=prepare)


def loss_of_each_view(params, image, label):
    """The losses of one image's 162 shifted and mirrored views, normalised, in float64."""
    dense = jax.tree.map(np.float64, params["Dense_0"])
    padded = np.pad(image, ((4, 4), (4, 4), (0, 0)))
    windows = [padded[r : r + 6, c : c + 7] for r in range(9) for c in range(9)]
    views = np.array([v for window in windows for v in (window, window[:, ::-1])])
    x = (views / 255 - np.array([[[[0.4, 0.6]]]])) / np.array([[[[0.2, 0.3]]]])
    logits = x.reshape(len(x), -1) @ dense["kernel"] + dense["bias"][None]
    return np.log(np.exp(logits).sum(1)) - logits[:, label]


def test_training_sees_views_and_evaluation_the_image():
    task = augmented_task()
    params, batch, mask = task.init(jax.random.key(0)), images_of(1), jnp.ones(1, bool)
    losses = loss_of_each_view(params, np.asarray(batch["x"][0]), int(batch["y"][0]))
    keys = jax.random.split(jax.random.key(1), 40)
    found = jax.jit(jax.vmap(task.loss, (None, None, None, 0)))(params, batch, mask, keys)
    nearest = np.abs(np.asarray(found)[:, None] - losses[None]).argmin(1)
    np.testing.assert_allclose(found, losses[nearest], rtol=1e-5)
    assert len(set(nearest)) > 25  # 35 expected of 40 draws from 162
    centre = 2 * (4 * 9 + 4)  # no shift, not mirrored
    evaluated = task.metrics(params, batch, mask)["loss"][0]
    assert float(evaluated) == pytest.approx(losses[centre], rel=1e-5)


def test_one_pass_measures_the_views_that_the_step_saw():
    task = augmented_task()
    params, batch, mask = task.init(jax.random.key(0)), images_of(), jnp.arange(5) != 2
    key = jax.random.key(3)

    @jax.jit
    def passes(params, batch):
        observed = task.observe(params, batch, mask, key)
        return *observed, task.loss(params, batch, mask, key), task.metrics(params, batch, mask)

    loss, metrics, alone, evaluated = passes(params, batch)
    assert float(loss) == pytest.approx(float(alone), rel=1e-6)
    assert float(metrics["loss"][0]) == pytest.approx(4 * float(loss), rel=1e-6)
    assert float(evaluated["loss"][0]) != pytest.approx(4 * float(loss), rel=1e-3)


@pytest.mark.parametrize("junk", [0, 255])
def test_padded_rows_change_no_bit_of_an_augmented_step(junk):
    task = augmented_task()
    params, batch = task.init(jax.random.key(0)), images_of()
    mask = jnp.array([False, True, True, False, True])
    dirty = {
        "x": jnp.where(mask.reshape(-1, 1, 1, 1), batch["x"], jnp.uint8(junk)),
        "y": jnp.where(mask, batch["y"], -12345),
    }
    both = jax.jit(jax.value_and_grad(task.observe, has_aux=True))
    clean, found = (both(params, b, mask, jax.random.key(1)) for b in (batch, dirty))
    for a, b in zip(*map(jax.tree.leaves, (clean, found)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_preparing_takes_no_draw_from_the_model():
    """Dropout falls as without `prepare`, and the key of `prepare` is none that dropout has."""
    seen = []

    def prepare(x, key):
        seen.append(key)
        return x

    bare = ccfl.classification_task(Dropping(), (4,), 3)
    task = ccfl.classification_task(Dropping(), (4,), 3, prepare=prepare)
    params, batch, mask = bare.init(jax.random.key(0)), batch_of(), jnp.ones(5, bool)
    key = jax.random.key(2)
    assert task.loss(params, batch, mask, key) == bare.loss(params, batch, mask, key)
    task.metrics(params, batch, mask)
    training, evaluation = seen
    assert evaluation is None and (jax.random.key_data(training) != jax.random.key_data(key)).any()


def test_every_client_and_step_draws_its_own_views():
    """With a rate of 0 the reported loss is the mean over the steps' views of the one image."""
    task = augmented_task()
    params, arrays = task.init(jax.random.key(0)), images_of(1)
    client = Client(arrays, jnp.zeros(1, jnp.int32), jnp.int32(0), jnp.int32(1))
    local = jax.jit(jax.vmap(build_local(task, 0.0, batch_size=1), (None, None, None, 0)))
    keys = jax.random.split(jax.random.key(1), 30)  # one for each client in its round
    first = np.asarray(local(params, client, 1, keys)[1].loss)
    second = 2 * np.asarray(local(params, client, 2, keys)[1].loss) - first
    # Independent draws of 162 views agree with chance 1 / 162: 0.2 of 30 expected.
    assert (np.abs(second - first) > 1e-4).sum() > 25
    assert len(np.unique(first.round(4))) > 20  # 27 different views expected
    again = np.asarray(local(params, client, 1, keys)[1].loss)
    np.testing.assert_array_equal(first, again)


def test_clients_together_take_the_steps_of_each_alone():
    task = augmented_task()
    params, arrays = task.init(jax.random.key(0)), images_of(6)
    local = build_local(task, 0.05, batch_size=2)
    keys = jax.random.split(jax.random.key(1), 3)
    starts, sizes = jnp.array([0, 3, 4]), jnp.array([3, 1, 2])

    def visit(start, size, key):
        return local(params, Client(arrays, jnp.arange(6), start, size), 2, key)

    together, alone = jax.jit(jax.vmap(visit))(starts, sizes, keys), jax.jit(visit)
    for i in range(3):
        single = alone(starts[i], sizes[i], keys[i])
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(single), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-5, atol=1e-6)


def test_what_is_prepared_as_bytes_is_still_scaled():
    task = ccfl.classification_task(
        Plain(), IMAGE, 3, prepare=lambda x, key: x if key is None else crop_and_flip(key, x)
    )
    plain = ccfl.classification_task(Plain(), IMAGE, 3)
    params, batch, mask = task.init(jax.random.key(0)), images_of(), jnp.ones(5, bool)
    found, expected = (t.metrics(params, batch, mask)["loss"][0] for t in (task, plain))
    assert float(found) == float(expected)
