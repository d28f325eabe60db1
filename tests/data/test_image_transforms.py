"""Crops and flips against every legal view, normalisation against its formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccfl_jax.data.image_transforms import CHANNELS, crop_and_flip, prepare_images, scale


def distinct(height, width, channels, dtype=np.uint8):
    """An image whose numbers differ from each other and from 0."""
    return 1 + np.arange(height * width * channels).reshape(height, width, channels).astype(dtype)


def legal_views(image, padding):
    """(row, column, flip) -> view, by loops over pixels."""
    height, width, _ = image.shape
    views = {}
    for row in range(-padding, padding + 1):
        for column in range(-padding, padding + 1):
            for flip in (False, True):
                view = np.zeros_like(image)
                for i in range(height):
                    for j in range(width):
                        k = width - 1 - j if flip else j
                        if 0 <= i + row < height and 0 <= k + column < width:
                            view[i, j] = image[i + row, k + column]
                views[row, column, flip] = view
    return views


def which(view, by_content):
    return by_content[np.asarray(view).tobytes()]


@given(
    st.integers(1, 6),
    st.integers(2, 6),
    st.integers(0, 3),
    st.sampled_from([np.uint8, np.float32, np.int32]),
    st.integers(0, 2**31),
)
@settings(max_examples=12)
def test_every_output_is_a_legal_view(height, width, padding, dtype, seed):
    image = distinct(height, width, 3, dtype)
    legal = {view.tobytes() for view in legal_views(image, padding).values()}
    found = crop_and_flip(jax.random.key(seed), jnp.asarray(np.stack([image] * 7)), padding)
    assert found.shape == (7, height, width, 3) and found.dtype == dtype
    for view in np.asarray(found):
        assert view.tobytes() in legal


@pytest.mark.parametrize("padding", [1, 4])
def test_views_are_uniform(padding):
    """Chi-square of all views together, which sees shifts, flips and any dependence of them.

    For n draws from k equally likely views, X = sum (count - n / k)^2 / (n / k) has mean k - 1 and
    variance below 2 (k - 1). Six standard deviations above it would come by chance with less than
    1 / 37 (Cantelli), in truth far less; one view that never comes adds n / k = 200 to X, where six
    deviations are 35 (k = 18) and 108 (k = 162).
    """
    image = distinct(5, 6, 1)
    by_content = {v.tobytes(): name for name, v in legal_views(image, padding).items()}
    k = 2 * (2 * padding + 1) ** 2
    assert len(by_content) == k
    n = 200 * k
    found = crop_and_flip(jax.random.key(5), jnp.asarray(np.stack([image] * n)), padding)
    counts = dict.fromkeys(by_content.values(), 0)
    for view in np.asarray(found):
        counts[which(view, by_content)] += 1
    x = sum((count - 200) ** 2 / 200 for count in counts.values())
    assert x < k - 1 + 6 * np.sqrt(2 * (k - 1))
    assert x > k - 1 - 6 * np.sqrt(2 * (k - 1))  # nor are the views dealt out in turn


def test_keys_decide():
    x = jnp.asarray(np.stack([distinct(5, 6, 1)] * 50))
    first, same, other = (np.asarray(crop_and_flip(jax.random.key(k), x)) for k in (0, 0, 1))
    np.testing.assert_array_equal(first, same)
    # Of 50 pairs of independent views a pair is equal with chance 1 / 162: 0.3 expected.
    assert (first != other).any(axis=(1, 2, 3)).sum() > 45
    assert len({view.tobytes() for view in first}) > 35  # 43 expected of 50 draws from 162


def test_the_images_beside_it_do_not_matter():
    rng = np.random.default_rng([0])
    x = jnp.asarray(rng.integers(0, 256, (6, 8, 8, 3)), jnp.uint8)
    others = jnp.asarray(rng.integers(0, 256, (6, 8, 8, 3)), jnp.uint8).at[2].set(x[2])
    key = jax.random.key(3)
    np.testing.assert_array_equal(crop_and_flip(key, x)[2], crop_and_flip(key, others)[2])


def test_clients_together_see_what_each_sees_alone():
    rng = np.random.default_rng([1])
    x = jnp.asarray(rng.integers(0, 256, (3, 5, 8, 8, 3)), jnp.uint8)
    keys = jax.random.split(jax.random.key(0), 3)
    together = jax.jit(jax.vmap(crop_and_flip))(keys, x)
    for key, images, found in zip(keys, x, together, strict=True):
        np.testing.assert_array_equal(found, crop_and_flip(key, images))


@pytest.mark.parametrize("name", CHANNELS)
def test_channels_are_normalised_by_the_formula(name):
    mean, std = np.array(CHANNELS[name], np.float64)
    raw = np.random.default_rng([2]).integers(0, 256, (4, 5, 6, 3)).astype(np.uint8)
    raw[0, 0, 0], raw[1, 1, 1] = 0, 255
    prepare = prepare_images(CHANNELS[name])
    expected = (raw / 255 - mean.reshape(1, 1, 1, 3)) / std.reshape(1, 1, 1, 3)
    for x in (raw, (raw / 255).astype(np.float32)):  # bytes are scaled, floats are not again
        for key in (None, jax.random.key(0)):
            found = prepare(jnp.asarray(x), key)
            assert found.dtype == jnp.float32
            np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


def test_crops_come_first_so_the_border_is_black():
    mean, std = np.array(CHANNELS["cifar10"])
    white, black = (1 - mean) / std, -mean / std
    x = jnp.full((40, 8, 8, 3), 255, jnp.uint8)
    key = jax.random.key(4)
    found = np.asarray(prepare_images(CHANNELS["cifar10"], augment=True)(x, key))
    outside = np.asarray(crop_and_flip(key, x))[..., 0] == 0
    assert 0.2 < outside.mean() < 0.6  # 1 - (1 - 20/9 / 8)^2 = 0.48 expected
    np.testing.assert_allclose(found[outside], np.tile(black, (outside.sum(), 1)), atol=1e-5)
    np.testing.assert_allclose(found[~outside], np.tile(white, ((~outside).sum(), 1)), atol=1e-5)


def test_evaluation_and_unasked_augmentation_change_nothing():
    x = jnp.asarray(np.random.default_rng([3]).integers(0, 256, (4, 8, 8, 1)), jnp.uint8)
    np.testing.assert_array_equal(prepare_images(augment=True)(x, None), scale(x))
    np.testing.assert_array_equal(prepare_images()(x, jax.random.key(0)), scale(x))
    assert (prepare_images(augment=True)(x, jax.random.key(0)) != scale(x)).any()


@pytest.mark.parametrize("padding", [-1, 1.5, True])
def test_illegal_paddings_are_refused(padding):
    with pytest.raises(ValueError, match="padding: expected an integer >= 0, found .*"):
        crop_and_flip(jax.random.key(0), jnp.zeros((1, 4, 4, 1)), padding)


def test_what_does_not_fit_is_refused():
    with pytest.raises(
        ValueError, match=r"expected \[B, h, w, channels\], found shape \(4, 4, 1\)"
    ):
        crop_and_flip(jax.random.key(0), jnp.zeros((4, 4, 1)))
    with pytest.raises(ValueError, match=r"expected 3 channels, found shape \(2, 4, 4, 1\)"):
        prepare_images(CHANNELS["cifar10"])(jnp.zeros((2, 4, 4, 1)), None)
    for channels in (((0.5, 0.5), (1.0,)), ((0.5,), (0.0,)), ((0.5,), (float("nan"),))):
        with pytest.raises(ValueError, match="channels: found means .* deviations above 0"):
            prepare_images(channels)
