r"""Compression: fewer bytes in an upload, or in the server's own update.

A compressor is an optax transformation. Clients send through it with `terms.sending`; after the
server method it compresses the model's own steps, so that what is sent to the clients is small too
and exactly what moves the model (server-side error feedback as in DoubleSqueeze, Tang et al., 2019,
whose clients are never stale):

    rule = ccfl.terms.sending(systems.with_error_feedback(systems.top_k(0.01)))
    server = optax.chain(ccfl.cc_fedavg(), systems.with_error_feedback(systems.top_k(0.05)))

Numbers are simulated as they would arrive; nothing is packed. `bytes_of` says what packing would
take; of the server's steps a client that missed some needs all of those, or the whole model. A
number that is not finite leaves one in what is sent, so the upload is rejected as without
compression. Results are of at least 32 bits, whatever the upload is.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.types import Params
from ccfl_jax.checks import check_kind, check_number, check_whole
from ccfl_jax.systems.draws import key_of

_RANDOM_K, _QUANTISE = 1, 2  # streams of `key_of`


class Compressor(optax.GradientTransformationExtraArgs):
    """An optax transformation that knows how many bytes its result takes.

    `optax.chain` takes it as any other and returns a plain transformation, which does not know; to
    tell of a chain, or of a compressor of one's own, write `Compressor(init, update, nbytes)`.

    Attributes:
        init, update: as in optax.
        nbytes: `nbytes(params) -> int`, the bytes of one upload of such a model.

    Examples:
        >>> compressor = ccfl.systems.top_k(0.01)
        >>> compressor.nbytes(jnp.zeros(1000))
        80
        >>> both = optax.chain(optax.clip_by_global_norm(1.0), compressor)
        >>> both = ccfl.systems.Compressor(both.init, both.update, compressor.nbytes)
        >>> ccfl.systems.bytes_of(both, jnp.zeros(1000))
        80
    """

    nbytes: Callable[[Params], int]

    def __new__(
        cls, init: Callable, update: Callable, nbytes: Callable[[Params], int]
    ) -> "Compressor":
        self = super().__new__(cls, init, update)
        self.nbytes = nbytes
        return self


class ErrorFeedbackState(NamedTuple):
    """State of `with_error_feedback`.

    Attributes:
        error: what has not been sent yet, like the parameters.
        inner: the compressor's own state.
    """

    error: Params
    inner: optax.OptState


def bytes_of(transform: optax.GradientTransformation | None, params: Params) -> int:
    """The bytes of one message about a model: what `metrics` may count as sent.

    Args:
        transform: what the message is sent through, or None. What is no `Compressor`, a chain of
            them too, counts as the whole model.
        params: the model, arrays or their shapes (`jax.eval_shape`).

    Examples:
        >>> params = {"kernel": jnp.zeros((60, 10)), "bias": jnp.zeros(10)}
        >>> ccfl.systems.bytes_of(None, params)
        2440
        >>> ccfl.systems.bytes_of(ccfl.systems.top_k(0.01), params)
        56
    """
    if isinstance(transform, Compressor):
        return transform.nbytes(params)
    leaves = jax.tree.leaves(params)
    return sum(math.prod(a.shape) * jnp.dtype(a.dtype).itemsize for a in leaves)


def top_k(share: float) -> Compressor:
    r"""The k = ceil(share d) largest of an upload's d numbers, all leaves together; the rest are 0.

    .. math:: C(x)_i = x_i \text{ where } |x_i| \text{ is among the } k \text{ largest, else } 0

    It is biased: use it in `with_error_feedback` (Stich et al., 2018). Of equal numbers the first
    are taken, so k are sent. Bytes: k float32 values and k indices of 4 bytes.

    Args:
        share: in (0, 1].

    Raises:
        ValueError: for another share.

    Examples:
        For `terms.sending(compressor)`:

        >>> compressor = ccfl.systems.top_k(0.5)
        >>> x = jnp.array([0.5, -4.0, 0.25, 3.0])
        >>> sent, _ = compressor.update(x, compressor.init(x))
        >>> print(sent)
        [ 0. -4.  0.  3.]
        >>> compressor.nbytes(x)  # two numbers and their places
        16
    """
    check_number("share", share, most=1, above=True)

    def compress(x: jax.Array, extra: dict[str, Any]) -> jax.Array:
        del extra
        return jnp.where(_largest(jnp.abs(x), _count(share, x.size)), x, 0)

    return _of_vectors(compress, lambda params: 8 * _count(share, _size(params)))


def random_k(share: float, scaled: bool = True) -> Compressor:
    r"""k = ceil(share d) of an upload's d numbers, drawn anew in each visit; the rest are 0.

    .. math:: C(x)_i = \frac dk x_i \text{ for } i \in S, \text{ else } 0, \qquad
              \mathbb E\, C(x) = x, \quad \mathbb E |C(x) - x|^2 = (d / k - 1) |x|^2

    S has k of the d coordinates, every such set with the same chance (Konecny et al., 2016;
    Stich et al., 2018). Bytes: k float32 values and the 8 bytes of the key that S follows from.

    Args:
        share: in (0, 1].
        scaled: False leaves the factor d / k out, as `with_error_feedback` needs: with it the error
            grows where k < d / 2.

    Raises:
        ValueError: for another share.

    Examples:
        For `terms.sending(compressor)`:

        >>> compressor = ccfl.systems.random_k(0.25)
        >>> x = jnp.ones(100)
        >>> sent, _ = compressor.update(x, compressor.init(x), key=jax.random.key(0))
        >>> int((sent != 0).sum()), float(sent.max())  # a quarter of them, four times as large
        (25, 4.0)
        >>> compressor.nbytes(x)
        108
    """
    check_number("share", share, most=1, above=True)

    def compress(x: jax.Array, extra: dict[str, Any]) -> jax.Array:
        k = _count(share, x.size)
        whole = _whole(x.dtype)
        drawn = jax.random.bits(key_of(extra, _RANDOM_K), x.shape, f"uint{8 * x.dtype.itemsize}")
        chosen = _largest(jax.lax.bitcast_convert_type(drawn >> 1, whole), k)
        # A product, not a choice: nan times 0 is nan.
        return x * jnp.where(chosen, x.size / k if scaled else 1.0, 0).astype(x.dtype)

    return _of_vectors(compress, lambda params: 4 * _count(share, _size(params)) + 8)


def quantise(levels: int) -> Compressor:
    r"""QSGD (Alistarh et al., 2017): s = `levels` steps of the norm, rounded at random.

    .. math:: Q_s(x)_i = |x| \, \text{sgn}(x_i) \, \xi_i, \qquad
              \xi_i = \frac{1}{s} \left\lfloor \frac{s |x_i|}{|x|} + u_i \right\rfloor, \quad
              u_i \sim U[0, 1), \qquad \mathbb E\, Q_s(x) = x

    :math:`\mathbb E |Q_s(x) - x|^2 \le \min(d / s^2, \sqrt d / s) |x|^2`; `with_error_feedback`
    needs less than :math:`|x|^2`. `|x|` is that of all leaves together, where the paper's
    experiments have a norm for each bucket of numbers. Bytes: ceil(log2(2 s + 1)) bits for every
    number and one float32 norm; the paper's Elias codes need fewer where most are 0.

    Args:
        levels: s, from 1 to 2**23.

    Raises:
        ValueError: for another number of levels.

    Examples:
        For `terms.sending(compressor)`:

        >>> compressor = ccfl.systems.quantise(levels=4)
        >>> x = jnp.array([3.0, 0.0, -4.0])
        >>> sent, _ = compressor.update(x, compressor.init(x), key=jax.random.key(0))
        >>> print(sent / 1.25)  # steps of |x| / 4
        [ 3.  0. -3.]
        >>> compressor.nbytes(jnp.zeros(1000))  # 4 bits each, and the norm
        504
    """
    levels = check_whole("levels", levels, 1, 2**23)

    def compress(x: jax.Array, extra: dict[str, Any]) -> jax.Array:
        norm = jnp.sqrt(jnp.square(x).sum())
        unit = jnp.where(norm == 0, 1, norm / levels)
        noise = jax.random.uniform(key_of(extra, _QUANTISE), x.shape, x.dtype)
        steps = jnp.minimum(jnp.floor(jnp.abs(x) / unit + noise), levels)
        return jnp.sign(x) * steps * unit

    bits = (2 * levels).bit_length()  # of 2 s + 1 values
    return _of_vectors(compress, lambda params: -(-bits * _size(params) // 8) + 4)


def sign(each_leaf: bool = False) -> Compressor:
    r"""The signs of an upload, with one scale (EF-SignSGD, Karimireddy et al., 2019).

    .. math:: C(x) = \frac{|x|_1}{d} \, \text{sgn}(x), \qquad
              |C(x) - x|^2 = |x|^2 - \frac{|x|_1^2}{d}

    It is biased: use it in `with_error_feedback`. sgn(0) is 1, as a bit has no third value. Bytes:
    1 bit for every number and a float32 for every scale.

    Args:
        each_leaf: a scale for each leaf, as the paper's experiments have for each layer, instead of
            one for all.

    Examples:
        For `terms.sending(compressor)`:

        >>> compressor = ccfl.systems.with_error_feedback(ccfl.systems.sign())
        >>> x = jnp.array([0.5, -4.0, 0.5, 3.0])
        >>> sent, _ = compressor.update(x, compressor.init(x))
        >>> print(sent)
        [ 2. -2.  2.  2.]
        >>> compressor.nbytes(jnp.zeros(1000))
        129
    """

    def scaled(x: jax.Array, extra: Any = None) -> jax.Array:
        del extra
        return jnp.where(x < 0, -1, 1).astype(x.dtype) * jnp.abs(x).mean()

    def update(
        updates: Params, state: Any, params: Params | None = None, **extra: Any
    ) -> tuple[Params, Any]:
        del params, extra
        return jax.tree.map(scaled, tree_util.wide(updates)), state

    def nbytes(params: Params) -> int:
        return -(-_size(params) // 8) + 4 * (len(jax.tree.leaves(params)) if each_leaf else 1)

    if each_leaf:
        return Compressor(lambda params: optax.EmptyState(), update, nbytes)
    return _of_vectors(scaled, nbytes)


def with_error_feedback(compressor: optax.GradientTransformation) -> Compressor:
    r"""What was not sent is added to the next upload (Stich et al., 2018).

    .. math:: g_t = C(m_t + \Delta_t), \qquad m_{t+1} = m_t + \Delta_t - g_t, \qquad m_0 = 0

    In `terms.sending` every client has a memory m of its own, which only a counted visit changes: a
    rejected upload is no loss. Of a client's two visits in one round both add the same memory, and
    the later one's remainder is kept. After a server method m is the server's.

    Args:
        compressor: C, any optax transformation; the error stays bounded where C removes a part of
            every vector: :math:`\mathbb E |C(x) - x|^2 \le (1 - \delta) |x|^2`, \delta > 0.

    Returns:
        A compressor whose messages have the bytes of C's.

    Raises:
        ValueError: for what is no optax transformation.

    Examples:
        For `terms.sending(compressor)`:

        >>> compressor = ccfl.systems.with_error_feedback(ccfl.systems.top_k(0.5))
        >>> x = jnp.array([3.0, 2.0])
        >>> state = compressor.init(x)
        >>> for _ in range(2):  # the same upload twice
        ...     sent, state = compressor.update(x, state)
        ...     print(sent)
        [3. 0.]
        [0. 4.]
    """
    kind = optax.GradientTransformation
    check_kind("compressor", compressor, kind, "an optax transformation")
    own = optax.with_extra_args_support(compressor)

    def init(params: Params) -> ErrorFeedbackState:
        return ErrorFeedbackState(tree_util.wide(optax.tree.zeros_like(params)), own.init(params))

    def update(
        updates: Params, state: Any, params: Params | None = None, **extra: Any
    ) -> tuple[Params, ErrorFeedbackState]:
        wanted = jax.tree.map(jnp.add, tree_util.wide(updates), state.error)
        sent, inner = own.update(wanted, state.inner, params, **extra)
        return sent, ErrorFeedbackState(jax.tree.map(jnp.subtract, wanted, sent), inner)

    return Compressor(init, update, lambda params: bytes_of(compressor, params))


def _of_vectors(
    compress: Callable[[jax.Array, dict[str, Any]], jax.Array], nbytes: Callable[[Params], int]
) -> Compressor:
    """A compressor without state from `compress(x, extra)`, of all numbers as one vector."""

    def update(
        updates: Params, state: Any, params: Params | None = None, **extra: Any
    ) -> tuple[Params, Any]:
        del params
        leaves, structure = jax.tree.flatten(tree_util.wide(updates))
        x = compress(jnp.concatenate([a.ravel() for a in leaves]), extra)
        ends = [sum(a.size for a in leaves[: k + 1]) for k in range(len(leaves) - 1)]
        parts = zip(jnp.split(x, ends), leaves, strict=True)
        return structure.unflatten(p.reshape(a.shape).astype(a.dtype) for p, a in parts), state

    return Compressor(lambda params: optax.EmptyState(), update, nbytes)


def _largest(a: jax.Array, k: int) -> jax.Array:
    """bool: the k largest of numbers from 0 on, of equal ones the first; nan is the largest."""
    # Their bits are in the same order: the k-th largest is found bit by bit, from the top. So many
    # passes are ten times faster than XLA's top_k on a CPU, which sorts.
    whole, top = _whole(a.dtype), 8 * a.dtype.itemsize - 2
    bits = jax.lax.bitcast_convert_type(a, whole) & jnp.iinfo(whole).max

    def grow(i: jax.Array, least: jax.Array) -> jax.Array:
        more = least | (jnp.ones((), whole) << (top - i).astype(whole))
        return jnp.where((bits >= more).sum() >= k, more, least)

    least = jax.lax.fori_loop(0, top + 1, grow, jnp.zeros((), whole))
    above, equal = bits > least, bits == least
    return above | (equal & (jnp.cumsum(equal) <= k - above.sum()))


def _whole(dtype: Any) -> Any:
    return {4: jnp.int32, 8: jnp.int64}[dtype.itemsize]


def _count(share: float, size: int) -> int:
    """k; the share of 0.07 of 100 is 7, whatever the floats say."""
    return max(1, math.ceil(round(share * size, 6)))


def _size(params: Params) -> int:
    return sum(math.prod(a.shape) for a in jax.tree.leaves(params))
