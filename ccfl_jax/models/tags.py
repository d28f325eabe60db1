"""Logistic regression on a bag of words, for predicting tags."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.types import Params


class TagLogistic(nn.Module):
    """One logistic regression per tag on a normalised bag of words: 5,000,500 parameters.

    With tokens `w_1 .. w_n` of a text (a repeated one counts each time),

        logits = c + 1/n sum_j W[w_j],

    the mean of rows of the table `W`, which is what a dense layer makes of the bag of words
    divided by its sum; the vector as long as the vocabulary is never built. A text without tokens
    has the logits `c`.

    Input integer token ids `[..., L]`, 0 <= id < vocabulary_size, with -1 as padding anywhere in
    the row and -2 for a word outside the vocabulary, which counts in n and has no row; output
    float32 logits `[..., num_tags]`. Any other id makes the text's logits nan.
    Parameters float32: `table` `[vocabulary_size, num_tags]` (LeCun normal as for the dense
    layer), `bias` `[num_tags]` (zero).

    Reverse mode only. Raises ValueError for sizes under 1 and for an input that is no integer
    array `[..., L]`.

    Source: the StackOverflow tag prediction of Reddi et al., Adaptive Federated Optimization (ICLR
    2021).

    Examples:
        >>> model = ccfl.models.TagLogistic(vocabulary_size=4, num_tags=2)
        >>> texts = jnp.array([[0, 3, -1], [-1, -1, -1]])  # two words; no word
        >>> params = {"params": {"table": jnp.arange(8.0).reshape(4, 2), "bias": jnp.ones(2)}}
        >>> print(model.apply(params, texts))
        [[4. 5.]
         [1. 1.]]
    """

    vocabulary_size: int = 10_000
    num_tags: int = 500

    @nn.compact
    def __call__(self, ids: jax.Array) -> jax.Array:
        shape = (self.vocabulary_size, self.num_tags)
        if min(shape) < 1:
            raise ValueError(
                f"TagLogistic: expected vocabulary_size and num_tags >= 1, found {shape}"
            )
        if ids.ndim < 1 or not jnp.issubdtype(ids.dtype, jnp.integer):
            raise ValueError(
                f"TagLogistic: expected integer ids [..., L], found input {ids.dtype} {ids.shape}"
            )
        table = self.param("table", nn.initializers.lecun_normal(), shape)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.num_tags,))
        rows, weights = _rows_and_weights(ids, table)
        means = _sum_of_rows(table, rows) * weights
        return means + jnp.broadcast_to(bias, means.shape)

    def descend(self, params: Params, ids: jax.Array, slope: jax.Array) -> Params:
        """`params - slope . d logits / d params`, writing only the table's rows of these ids.

        A step of plain SGD with `slope = rate * d loss / d logits`, `[..., num_tags]`; a gradient
        as large as the table, zeros almost throughout, would take longer than all the rest.
        """
        table, bias = params["table"], params["bias"]
        ids = ids.reshape(-1, ids.shape[-1])
        slope = slope.reshape(-1, slope.shape[-1]).astype(table.dtype)
        rows, weights = _rows_and_weights(ids, table)
        table = _add_to_rows(table, rows, -slope * weights)
        return {"table": table, "bias": bias - slope.sum(0)}


def _rows_and_weights(ids: jax.Array, table: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rows of the table `[..., L]`, past its end for padding, and the weight `[..., 1]` of each."""
    ids = tree_util.at_least_int32(ids)
    real, known = ids != -1, (ids >= 0) & (ids < table.shape[0])
    weights = 1 / jnp.maximum(real.sum(-1, keepdims=True), 1)
    wrong = (ids < -2) | (ids >= table.shape[0])
    weights = jnp.where(wrong.any(-1, keepdims=True), jnp.nan, weights)
    return jnp.where(known, ids, table.shape[0]), weights.astype(table.dtype)


def _sum_of_rows(table: jax.Array, rows: jax.Array) -> jax.Array:
    """`sum_l table[rows[..., l]]`, `[..., L] -> [..., columns]`."""
    if jax.default_backend() != "cpu":
        return _read(table, rows).sum(-2)
    return _place_by_place(table, rows)


# One place of every text at a time: the sums stay in the cache, and so does the gradient of the
# logits in the backward pass. All rows at once take L times the memory and seven times the time.
# With its own gradient rule XLA merges the loop of the metrics with that of the loss.
@jax.custom_vjp
def _place_by_place(table: jax.Array, rows: jax.Array) -> jax.Array:
    def add(place: jax.Array, total: jax.Array) -> jax.Array:
        return total + _read(table, rows[..., place])

    start = jnp.zeros((*rows.shape[:-1], table.shape[1]), table.dtype)
    return jax.lax.fori_loop(0, rows.shape[-1], add, start)


def _forward(table: jax.Array, rows: jax.Array) -> tuple:
    return _place_by_place(table, rows), (table, rows)


def _backward(residuals: tuple, g: jax.Array) -> tuple:
    table, rows = residuals
    return _add_to_rows(jnp.zeros_like(table), rows, g), None


def _add_to_rows(table: jax.Array, rows: jax.Array, g: jax.Array) -> jax.Array:
    """`table` with `g[...]` added to its row `rows[..., l]`, for every l."""

    def add(place: jax.Array, table: jax.Array) -> jax.Array:
        return table.at[rows[..., place]].add(g, mode="drop")

    return jax.lax.fori_loop(0, rows.shape[-1], add, table)


def _read(table: jax.Array, rows: jax.Array) -> jax.Array:
    return table.at[rows].get(mode="fill", fill_value=0)


_place_by_place.defvjp(_forward, _backward)
