"""Recurrent networks for the next character and the next word."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ccfl_jax.algorithm import tree_util


class CharLSTM(nn.Module):
    """Two LSTM layers on an embedding of 8, for the next character: 820,522 parameters for 90 ids.

    Embedding 8, LSTM `hidden`, LSTM `hidden`, dense `vocabulary_size`. Input integer ids
    `[b, L]`, 0 <= id < vocabulary_size; output logits `[b, L, vocabulary_size]` for the id after
    each place. From another id on, the logits of its row are nan. Raises ValueError for sizes under
    1 and for another input.

    Source: the Shakespeare model of McMahan et al., Communication-Efficient Learning of Deep
    Networks from Decentralized Data (AISTATS 2017), as of Reddi et al., Adaptive Federated
    Optimization (ICLR 2021). Departures: Flax's initialisers, and padding passes through the
    layers, which changes nothing where it stands after the text.

    Examples:
        >>> model = ccfl.models.CharLSTM()
        >>> x = jnp.zeros((5, 80), jnp.int32)
        >>> params = jax.eval_shape(model.init, jax.random.key(0), x)
        >>> sum(leaf.size for leaf in jax.tree.leaves(params))
        820522
        >>> jax.eval_shape(model.apply, params, x).shape
        (5, 80, 90)
    """

    vocabulary_size: int = 90
    hidden: int = 256

    @nn.compact
    def __call__(self, ids: jax.Array) -> jax.Array:
        x: Any = _embedded(self, ids, 8)
        for number in (1, 2):
            x = nn.RNN(nn.OptimizedLSTMCell(self.hidden, name=f"lstm{number}"))(x)
        return nn.Dense(self.vocabulary_size, name="dense")(x)


class WordLSTM(nn.Module):
    """An LSTM layer on an embedding of 96, for the next word: 4,050,748 parameters for 10,004 ids.

    Embedding 96, LSTM `hidden`, dense 96, dense `vocabulary_size`. Input, output and errors as of
    `CharLSTM`.

    Source: the Stack Overflow next-word model of Reddi et al., Adaptive Federated Optimization
    (ICLR 2021). Departures: as of `CharLSTM`.

    Examples:
        >>> model = ccfl.models.WordLSTM()
        >>> x = jnp.zeros((5, 20), jnp.int32)
        >>> params = jax.eval_shape(model.init, jax.random.key(0), x)
        >>> sum(leaf.size for leaf in jax.tree.leaves(params))
        4050748
        >>> jax.eval_shape(model.apply, params, x).shape
        (5, 20, 10004)
    """

    vocabulary_size: int = 10_004
    hidden: int = 670

    @nn.compact
    def __call__(self, ids: jax.Array) -> jax.Array:
        x: Any = _embedded(self, ids, 96)
        x = nn.RNN(nn.OptimizedLSTMCell(self.hidden, name="lstm"))(x)
        x = nn.Dense(96, name="dense1")(x)
        return nn.Dense(self.vocabulary_size, name="dense2")(x)


def _embedded(model: CharLSTM | WordLSTM, ids: jax.Array, width: int) -> jax.Array:
    """`[b, L, width]`; nan for ids outside the vocabulary."""
    name, size = type(model).__name__, model.vocabulary_size
    if min(size, model.hidden) < 1:
        raise ValueError(
            f"{name}: expected vocabulary_size and hidden >= 1, found {(size, model.hidden)}"
        )
    if ids.ndim != 2 or not jnp.issubdtype(ids.dtype, jnp.integer):
        raise ValueError(
            f"{name}: expected integer ids [b, L], found input {ids.dtype} {ids.shape}"
        )
    ids = tree_util.at_least_int32(ids)
    # Past the end, where the table reads nan; a negative id would count from its end.
    return nn.Embed(size, width, name="embedding")(jnp.where(ids < 0, size, ids))
