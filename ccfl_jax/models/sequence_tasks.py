"""Tasks on sequences of tokens: the next character, the next word."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen

from ccfl_jax.algorithm.types import Batch, Params, Task
from ccfl_jax.checks import check_whole
from ccfl_jax.models.flax_model import functions
from ccfl_jax.models.task_parts import counted, hits, make_task, pair, wide

# Together in an evaluation, 64 MiB: those of 1,000 sentences over 10,000 words are 800 MB, and take
# twice the time on a CPU.
_LOGITS = 2**24


def next_token_task(
    model: linen.Module | Callable[..., Any],
    input_shape: Sequence[int],
    num_tokens: int,
    padding: int = 0,
    unscored: Sequence[int] = (),
    compute_dtype: Any = None,
) -> Task:
    r"""Prediction of the next token at every place of a sequence, with softmax cross-entropy.

    Batches hold "x" int32 `[B, L]`, token ids as the model takes them, and "y" integers: `[B, L]`,
    the token after each place, or `[B]`, that after the last one alone. Targets that are `padding`
    count nowhere. With c the targets of a batch that count and p the model's probabilities,

    .. math:: loss = \frac{1}{|c|} \sum_{(b, l) \in c} -\log p_{bl}(y_{bl}),

    so tokens weigh the same, not rows: of a data set, the metric "loss" is that mean over its
    tokens, whose exponential is the perplexity. A batch without targets has the loss 0. Padded rows
    may hold anything, as in `classification_task`.

    Metrics are "loss" and "accuracy", the share of the targets whose token has the largest logit,
    of those that are neither `padding` nor one of `unscored`. A target outside the tokens makes the
    loss nan, so the upload is rejected; logits that are nan or inf make the accuracy nan.

    Args:
        model: as for `classification_task`, of output `[B, L, num_tokens]`. Nothing else keeps the
            output of a place from depending on later ones.
        input_shape: `(L,)`.
        num_tokens: the tokens 0 <= y < num_tokens.
        padding: that id, of the tokens or -1.
        unscored: tokens that are learnt and not scored, as "unknown" and "end of sentence".
        compute_dtype: as for `classification_task`.

    Returns:
        A `Task`.

    Raises:
        ValueError: as `classification_task`, with `num_tokens` for `num_classes`; for a `padding`
            or `unscored` that is no token.

    Source: next-character and next-word prediction of Reddi et al., Adaptive Federated Optimization
    (ICLR 2021), where Shakespeare is scored without padding, and Stack Overflow without padding,
    unknown words and ends. How they divide the loss of a batch with padding is not printed.

    Examples:
        >>> from flax import linen
        >>> task = ccfl.next_token_task(linen.Embed(5, 5), (3,), num_tokens=5)  # a table of pairs
        >>> text = {"x": np.array([[1, 2, 3]]), "y": np.array([[2, 3, 0]])}  # 0 is padding
        >>> params = jax.tree.map(jnp.zeros_like, task.init(jax.random.key(0)))
        >>> round(ccfl.evaluate(task, params, text)["loss"], 3)  # log(5)
        1.609
    """
    check_whole("num_tokens", num_tokens, 1)
    for name, tokens, least in (("padding", [padding], -1), ("unscored", unscored, 0)):
        for token in tokens:
            if check_whole(name, token, least) >= num_tokens:
                raise ValueError(f"{name}: expected below num_tokens={num_tokens}, found {token}")
    output = (*input_shape, num_tokens)
    init, apply, same = functions(model, input_shape, jnp.int32, output, compute_dtype)

    def rows(params: Params, batch: Batch, mask: jax.Array, key: jax.Array | None) -> tuple:
        x, y = pair(batch, mask, "[B, L]", "[B]")
        logits = wide(apply(params, x, key))
        logits = logits[:, -1] if y.ndim == 1 else logits
        if y.shape != logits.shape[:-1]:
            raise ValueError(f"y: expected {logits.shape[:-1]} or [B], found shape {y.shape}")
        counts = (y != padding) & mask.reshape(-1, *(1,) * (y.ndim - 1))
        known = (y >= 0) & (y < num_tokens)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(known, y, 0))
        return counted(losses, known, counts), counts, logits, y

    def measure(losses: jax.Array, counts: jax.Array, logits: jax.Array, y: jax.Array) -> dict:
        scored = counts & ~jnp.isin(y, jnp.array(unscored, y.dtype))
        right = jnp.where(scored, hits(logits, y), 0.0).sum()
        return {"loss": (losses.sum(), counts.sum()), "accuracy": (right, scored.sum())}

    labels = (("y", min(padding, 0), num_tokens - 1),)
    predict = partial(apply, key=None)
    task = make_task(init, rows, measure, same, labels, predict)

    def metrics(params: Params, batch: Batch, mask: jax.Array) -> dict[str, tuple]:
        together = max(1, _LOGITS // math.prod(output))
        if len(mask) <= together:
            return task.metrics(params, batch, mask)

        def of_row(row: tuple) -> dict[str, tuple]:
            return task.metrics(params, *jax.tree.map(lambda a: a[None], row))

        each = jax.lax.map(of_row, (dict(batch), mask), batch_size=together)
        return jax.tree.map(lambda a: a.sum(axis=0), each)

    return task._replace(metrics=metrics)
