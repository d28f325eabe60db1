"""Image transforms: random crops and flips for training, normalised channels."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from ccfl_jax.checks import check_whole

# Mean and standard deviation of each channel over the training images, pixels in [0, 1]; in both
# sets as most published code has them. The deviations of CIFAR-10 are means of each image's own:
# over all pixels they are (0.2470, 0.2435, 0.2616), as those of CIFAR-100 are over all pixels.
CHANNELS = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
CHANNELS["fed_cifar100"] = CHANNELS["cifar100"]  # the same images


def prepare_images(
    channels: tuple[Sequence[float], Sequence[float]] | None = None, augment: bool = False
) -> Callable[[jax.Array, jax.Array | None], jax.Array]:
    """Transforms batches of images before the model, for `classification_task(prepare=...)`.

    With a key, in training, `crop_and_flip` of the stored images, with `augment`; then pixels are
    scaled to [0, 1]; then each channel is normalised, `(x - mean) / std`. This is the usual order,
    so the border of a crop is black, `-mean / std` to the model and not 0. Without a key, in
    evaluation, nothing is cropped or flipped.

    Args:
        channels: mean and standard deviation of each channel, as in `CHANNELS`; by default nothing
            is normalised. Federated code for CIFAR-100 often takes the numbers of CIFAR-10.
        augment: whether training images are cropped and flipped.

    Returns:
        `prepare(x, key) -> x`: images `[B, h, w, c]`, uint8 or floats in [0, 1], become floats of
        the same shape. It raises ValueError if there are not as many channels.

    Raises:
        ValueError: means and deviations are not equally many, or a deviation is not positive.

    Examples:
        >>> prepare = ccfl.data.prepare_images(ccfl.data.CHANNELS["cifar10"], augment=True)
        >>> model = ccfl.models.Logistic(10)
        >>> task = ccfl.classification_task(model, (32, 32, 3), 10, prepare=prepare)
        >>> images = jnp.zeros((2, 32, 32, 3), jnp.uint8)
        >>> print(np.array(prepare(images, None)[0, 0, 0]).round(1))  # of black: -mean / std
        [-2.4 -2.4 -2.2]
    """
    mean, std = channels or ((), ())
    if len(mean) != len(std) or not all(deviation > 0 for deviation in std):
        raise ValueError(
            f"channels: expected as many means as deviations > 0, found {tuple(mean)} and "
            f"{tuple(std)}"
        )

    def prepare(x: jax.Array, key: jax.Array | None) -> jax.Array:
        if augment and key is not None:
            x = crop_and_flip(key, x)
        x = scale(x)
        return x if channels is None else _normalise(x, mean, std)

    return prepare


def crop_and_flip(key: jax.Array, x: jax.Array, padding: int = 4) -> jax.Array:
    """A random view of each image: shifted by up to `padding` pixels, and mirrored or not.

    The image gets a border of `padding` zeros, black for bytes; a window of its own size is cut at
    one of (2 padding + 1)^2 places, and its columns are reversed or not. Each of the 2 (2 padding +
    1)^2 views is as likely as any other. Which one an image gets follows from the key and its place
    in the batch, so the images beside it do not matter.

    Args:
        key: PRNG key.
        x: images `[B, h, w, c]` of any dtype, which is kept.
        padding: the largest shift, 0 or more.

    Returns:
        Views `[B, h, w, c]`.

    Raises:
        ValueError: another shape, or a padding that is no whole number of 0 or more.

    Source: the CIFAR training of He et al., Deep Residual Learning (CVPR 2016), section 4.2, and of
    the federated code that the paper's settings come from (padding with zeros; NIID-Bench mirrors
    the image at its edges instead).

    Examples:
        >>> images = jnp.ones((2, 32, 32, 3))
        >>> views = ccfl.data.crop_and_flip(jax.random.key(0), images, padding=4)
        >>> views.shape, float(views.max())
        ((2, 32, 32, 3), 1.0)
    """
    check_whole("padding", padding, 0)
    if x.ndim != 4:
        raise ValueError(f"images: expected [B, h, w, channels], found shape {x.shape}")
    places = 2 * padding + 1
    # One draw an image for row, column and mirror.
    view = jax.random.randint(key, x.shape[:1], 0, 2 * places**2)
    border = (padding, padding)
    padded = jnp.pad(x, ((0, 0), border, border, (0, 0)))

    def cut(image: jax.Array, view: jax.Array) -> jax.Array:
        row, column = jnp.divmod(view // 2, places)
        window = jax.lax.dynamic_slice(image, (row, column, 0), x.shape[1:])
        return jnp.where(view % 2 == 1, window[:, ::-1], window)

    return jax.vmap(cut)(padded, view)


def scale(x: jax.Array) -> jax.Array:
    """uint8 0..255 becomes float32 in [0, 1]; other dtypes are not changed."""
    return x.astype(jnp.float32) / 255 if x.dtype == jnp.uint8 else x


def _normalise(x: jax.Array, mean: Sequence[float], std: Sequence[float]) -> jax.Array:
    if x.shape[-1:] != (len(mean),):
        raise ValueError(f"images: expected {len(mean)} channels, the last, found shape {x.shape}")
    last = (1,) * (x.ndim - 1) + (-1,)
    centre, spread = (jnp.asarray(each, jnp.float32).reshape(last) for each in (mean, std))
    return (x - centre) / spread
