"""A task of one's own for texts in LEAF's form: the next character, by a GRU.

ccfl train --dataset='leaf(FOLDER)' --task=experiments/examples/leaf_gru.py:task
"""

import flax.linen as nn
import jax

import ccfl_jax as ccfl

CHARACTERS, LENGTH = 90, 80  # a sample of `ccfl.data.load_leaf`: 80 ids below 90


class GRU(nn.Module):
    """The logits of the character after each place."""

    width: int = 64

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        states = nn.RNN(nn.GRUCell(self.width))(nn.Embed(CHARACTERS, 8)(x))
        return nn.Dense(CHARACTERS)(states)


def task() -> ccfl.Task:
    """What `--task` names: "y" is the character after a sample."""
    return ccfl.next_token_task(GRU(), (LENGTH,), CHARACTERS)
