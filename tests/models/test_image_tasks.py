"""classification_task with `prepare`: views in training, the image itself in evaluation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from data_files import legal_views
from small_models import Dropping, losses_by_hand, problem

import ccfl_jax as ccfl
from ccfl_jax.algorithm.client_update import Client, build_local
from ccfl_jax.data.image_transforms import prepare_images

pytestmark = pytest.mark.usefixtures("quickly_compiled")
SHAPE = (6, 7, 2)  # so large that no view is all border
KEY = jax.random.key(0)
MEANS, DEVIATIONS = (0.4, 0.6), (0.2, 0.3)
AUGMENTED = {"shape": SHAPE, "prepare": prepare_images((MEANS, DEVIATIONS), augment=True)}


def images_of(rows):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (rows, *SHAPE), np.uint8), rng.integers(0, 3, rows, np.int32)
    return {"x": x, "y": y}, np.ones(rows, bool)


def test_training_sees_views_and_evaluation_the_image():
    task, params = problem(**AUGMENTED)
    batch, mask = images_of(1)
    # The losses of the image's 162 shifted and mirrored views, normalised, in float64.
    x = (legal_views(batch["x"][0], 4) / 255 - [[[MEANS]]]) / [[[DEVIATIONS]]]
    labels = np.repeat(batch["y"], 162)
    losses, _ = losses_by_hand(params["Dense_0"], x.reshape(162, -1), labels)
    keys = jax.random.split(jax.random.key(1), 40)
    found = jax.jit(jax.vmap(task.loss, (None, None, None, 0)))(params, batch, mask, keys)
    nearest = np.abs(np.asarray(found)[:, None] - losses[None]).argmin(1)
    np.testing.assert_allclose(found, losses[nearest], rtol=1e-5)
    assert len(set(nearest)) > 25  # 35 expected of 40 draws from 162
    centre = 2 * (4 * 9 + 4)  # no shift, not mirrored
    evaluated = task.metrics(params, batch, mask)["loss"][0]
    assert float(evaluated) == pytest.approx(losses[centre], rel=1e-5)


def test_one_pass_measures_the_views_that_the_step_saw():
    task, params = problem(**AUGMENTED)
    batch, mask = images_of(5)[0], np.arange(5) != 2

    @jax.jit
    def passes(params, batch):
        return *task.observe(params, batch, mask, KEY), task.loss(params, batch, mask, KEY)

    loss, metrics, alone = passes(params, batch)
    assert float(loss) == pytest.approx(float(alone), rel=1e-6)
    assert float(metrics["loss"][0]) == pytest.approx(4 * float(loss), rel=1e-6)


def test_preparing_takes_no_draw_from_the_model():
    """Dropout falls as without `prepare`, and the key of `prepare` is none that dropout has.

    Bytes that are still bytes when they are prepared are scaled as without it.
    """
    batch, mask = {"x": np.full((5, 4), 99, np.uint8), "y": np.zeros(5, np.int32)}, np.ones(5, bool)
    bare, params = problem(Dropping())
    seen = []

    def prepare(x, key):
        seen.append(None if key is None else jax.random.key_data(key))
        return x

    task = ccfl.classification_task(Dropping(), (4,), 3, prepare=prepare)
    both = jax.jit(lambda key: (task.loss(params, batch, mask, key), seen[-1]))
    loss, training = both(KEY)
    assert loss == bare.loss(params, batch, mask, KEY)
    assert (training != jax.random.key_data(KEY)).any()
    jax.eval_shape(task.metrics, params, batch, mask)
    assert seen[-1] is None


def test_every_client_and_step_draws_its_own_views():
    """With a rate of 0 the reported loss is the mean over the steps' views of the one image."""
    task, params = problem(**AUGMENTED)
    client = Client(images_of(1)[0], jnp.zeros(1, jnp.int32), jnp.int32(0), jnp.int32(1))
    local = jax.jit(jax.vmap(build_local(task, 0.0, batch_size=1), (None, None, None, 0)))
    keys = jax.random.split(jax.random.key(1), 30)  # one for each client in its round
    first, both, again = (np.asarray(local(params, client, k, keys).info.loss) for k in (1, 2, 1))
    second = 2 * both - first
    # Independent draws of 162 views agree with chance 1 / 162: 0.2 of 30 expected.
    assert (np.abs(second - first) > 1e-4).sum() > 25
    assert len(np.unique(first.round(4))) > 20  # 27 different views expected
    np.testing.assert_array_equal(first, again)
