"""Crops and flips against every legal view, normalisation against its formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from data_files import legal_views
from refusal import refused

from ccfl_jax.data.image_transforms import CHANNELS, crop_and_flip, prepare_images

pytestmark = pytest.mark.usefixtures("quickly_compiled")
crop = jax.jit(crop_and_flip, static_argnums=2)


def distinct(height, width, channels, dtype=np.uint8):
    """An image whose numbers differ from each other and from 0."""
    return 1 + np.arange(height * width * channels).reshape(height, width, channels).astype(dtype)


def bytes_of(*shape):
    return np.random.default_rng([0]).integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize(("shape", "padding", "dtype"), [
    ((6, 5), 1, np.uint8), ((1, 2), 3, np.float32), ((4, 3), 0, np.int32),
])  # fmt: skip
def test_every_output_is_a_legal_view(shape, padding, dtype):
    image = distinct(*shape, 3, dtype)
    legal = {view.tobytes() for view in legal_views(image, padding)}
    found = crop(jax.random.key(2), jnp.asarray(np.stack([image] * 40)), padding)
    assert found.shape == (40, *shape, 3) and found.dtype == dtype
    drawn = {view.tobytes() for view in np.asarray(found)}
    assert len(drawn) > 1 and drawn <= legal


def test_views_are_uniform_and_keys_decide():
    """Chi-square of all views together, which sees shifts, flips and any dependence of them.

    For n draws from k equally likely views, X = sum (count - n / k)^2 / (n / k) has mean k - 1 and
    variance below 2 (k - 1). Six standard deviations above it would come by chance with less than
    1 / 37 (Cantelli), in truth far less; one view that never comes adds n / k = 200 to X, where six
    deviations are 108.
    """
    image, k = distinct(5, 6, 1), 2 * 9**2
    x = jnp.asarray(np.stack([image] * 200 * k))
    first, same, other = (np.asarray(crop(jax.random.key(seed), x, 4)) for seed in (5, 5, 6))
    views, counts = np.unique(first.reshape(200 * k, 30), axis=0, return_counts=True)
    np.testing.assert_array_equal(views, np.unique(legal_views(image, 4).reshape(k, 30), axis=0))
    x = ((counts - 200) ** 2 / 200).sum()
    assert x < k - 1 + 6 * np.sqrt(2 * (k - 1))
    assert x > k - 1 - 6 * np.sqrt(2 * (k - 1))  # nor are the views dealt out in turn
    np.testing.assert_array_equal(first, same)
    # Two independent views are equal with chance 1 / 162: 200 of these pairs, give or take 14.
    assert abs((first == other).all(axis=(1, 2, 3)).sum() - 200) < 6 * 14.1


def test_the_images_beside_it_do_not_matter():
    """Nor do other clients' images, where several clients are one program."""
    x, keys = bytes_of(3, 5, 8, 8, 3), jax.random.split(jax.random.key(0), 3)
    together = jax.jit(jax.vmap(crop_and_flip))(keys, x)
    alone = [crop(key, images) for key, images in zip(keys, x, strict=True)]
    np.testing.assert_array_equal(together, alone)
    x[1, 2] = x[0, 2]
    np.testing.assert_array_equal(crop(keys[0], x[1])[2], together[0, 2])


@pytest.mark.parametrize("name", CHANNELS)
def test_channels_are_normalised_by_the_formula(name):
    mean, std = np.array(CHANNELS[name], np.float64)
    raw = bytes_of(4, 5, 6, 3)
    raw[0, 0, 0], raw[1, 1, 1] = 0, 255
    prepare = prepare_images(CHANNELS[name])
    expected = (raw / 255 - mean.reshape(1, 1, 1, 3)) / std.reshape(1, 1, 1, 3)
    for x in (raw, (raw / 255).astype(np.float32)):  # bytes are scaled, floats are not again
        for key in (None, jax.random.key(0)):
            found = prepare(jnp.asarray(x), key)
            assert found.dtype == jnp.float32
            np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


def test_what_does_not_fit_is_refused():
    for padding in (-1, 1.5, True):
        message = f"padding: expected an integer >= 0, found {padding}"
        refused(message, crop_and_flip, jax.random.key(0), jnp.zeros((1, 4, 4, 1)), padding)
    message = "images: expected [B, h, w, channels], found shape (4, 4, 1)"
    refused(message, crop_and_flip, jax.random.key(0), jnp.zeros((4, 4, 1)))
    message = "images: expected 3 channels, ..., found shape (2, 4, 4, 1)"
    refused(message, prepare_images(CHANNELS["cifar10"]), jnp.zeros((2, 4, 4, 1)), None)
    for means, deviations in (((0.5, 0.5), (1.0,)), ((0.5,), (0.0,)), ((0.5,), (float("nan"),))):
        message = f"channels: expected as many ... > 0, found {means} and {deviations}"
        refused(message, prepare_images, (means, deviations))
