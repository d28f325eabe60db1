"""Tasks: the functions of a `Task` for a model and a kind of data."""

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
from ccfl_jax.models.task_parts import (
    are_numbers,
    counted,
    floats,
    hits,
    make_task,
    observed,
    pair,
    wide,
)

# The stream of this module's draws, apart from those of a model, such as dropout.
_PREPARE_STREAM = 0x50524550


def classification_task(
    model: linen.Module | Callable[..., Any],
    input_shape: Sequence[int],
    num_classes: int,
    compute_dtype: Any = None,
    prepare: Callable[[jax.Array, jax.Array | None], jax.Array] | None = None,
) -> Task:
    """Single-label classification with softmax cross-entropy.

    Batches hold "x" `[B, *input_shape]` (uint8 images are scaled to [0, 1] here, floats are not,
    other integers are refused) and "y" integer `[B]`, 0 <= y < num_classes. Padded rows may hold
    anything: before `prepare` and the model they are replaced by the batch's first real row, so
    that neither their values nor the derivatives at them matter.

    Metrics are "loss" and "accuracy". A label outside the range makes the loss nan (so the upload
    is rejected, the metric nan); logits that are nan or inf (-inf beside finite ones is allowed)
    make the accuracy nan.

    Args:
        model: a Flax Linen module; or a function `rngs -> nnx.Module`; or an NNX module, whose own
            parameters are then the initial model for every key. A module that takes a keyword
            ``train``, `training`, `is_training` or `deterministic` gets it, and the key as its
            "dropout" stream. Arrays of an NNX module that are no parameters are constants, drawn
            ones those of `nnx.Rngs(key(0))`.
        input_shape: shape of one sample.
        num_classes: width of the model's output.
        compute_dtype: a float dtype, such as `jnp.bfloat16`, to which parameters and inputs are
            rounded for the model alone; losses, gradients and all state between steps stay in the
            parameters' dtype. By default nothing is rounded.
        prepare: `prepare(x, key) -> x`, what becomes of a batch's inputs before the model; the key
            is None in evaluation.

    Returns:
        A `Task`.

    Raises:
        ValueError: if the model has statistics beside its parameters (BatchNorm), a layer whose
            dropout does not act in training, draws in evaluation, or another output than
            `[B, num_classes]`, or cannot be called so; the task's functions, for an "x" or "y" that
            is missing or not as described.

    Examples:
        >>> model = ccfl.models.Logistic(num_classes=10)
        >>> task = ccfl.classification_task(model, input_shape=(8, 8, 1), num_classes=10)
        >>> _, test = ccfl.load_dataset("digits")
        >>> task.predict(task.init(jax.random.key(0)), test["x"][:3]).shape  # logits
        (3, 10)
        >>> task.labels  # what "y" may hold
        (('y', 0, 9),)
    """
    check_whole("num_classes", num_classes, 1)
    init, apply, same = functions(model, input_shape, jnp.float32, (num_classes,), compute_dtype)

    def rows(params: Params, batch: Batch, mask: jax.Array, key: jax.Array | None) -> tuple:
        x, y = pair(batch, mask, "[B]")
        if prepare is not None:
            x = prepare(x, None if key is None else jax.random.fold_in(key, _PREPARE_STREAM))
        logits = wide(apply(params, floats(x), key))
        known = (y >= 0) & (y < num_classes)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(known, y, 0))
        return counted(losses, known, mask), mask, logits, y

    def measure(losses: jax.Array, mask: jax.Array, logits: jax.Array, y: jax.Array) -> dict:
        count = mask.sum()
        right = jnp.where(mask, hits(logits, y), 0.0).sum()
        return {"loss": (losses.sum(), count), "accuracy": (right, count)}

    def predict(params: Params, x: jax.Array) -> jax.Array:
        return wide(apply(params, floats(x if prepare is None else prepare(x, None)), None))

    return make_task(init, rows, measure, same, (("y", 0, num_classes - 1),), predict)


def tags_task(
    model: linen.Module | Callable[..., Any],
    input_shape: Sequence[int],
    num_tags: int,
    compute_dtype: Any = None,
) -> Task:
    r"""Tag prediction: any number of `num_tags` labels for a row, sigmoid cross-entropy.

    Batches hold "x" int32 `[B, *input_shape]`, token ids as the model takes them, and "y" int32
    `[B, T]`, the row's tags 0 <= y < num_tags in any order, with -1 as padding; a tag named twice
    counts once. Padded rows may hold anything. With :math:`t_{bk} \in \{0, 1\}` for "row b has
    tag k" and logits :math:`z_{bk}` the loss is

    .. math:: \frac{1}{B} \sum_b \sum_k \log(1 + e^{z_{bk}}) - t_{bk} z_{bk}

    summed over tags, averaged over rows. The federated tag-prediction baselines average over tags
    and sum over rows instead: their loss is B / num_tags times ours, and so is the `local_lr` here
    that takes the same step as theirs (100 there with B 100 and 500 tags is 20 here). The paper's
    0.01 hardly changes this model.

    Metrics are "loss" and "recall_at_5": of all true tags of all rows, the share among the five
    highest logits of its row. Of equal logits the lower tag is first; with fewer than five tags all
    are among them. It is nan where no row has a tag, or a real row has a logit that is nan or inf.
    A tag outside the range makes the loss nan.

    Args:
        model: as for `classification_task`; its method `descend(params, x, slope)`, where it has
            one, makes the step of plain SGD, `params - slope . d logits / d params`.
        input_shape: shape of one sample, `(L,)` for texts of up to L tokens.
        num_tags: width of the model's output.
        compute_dtype: as for `classification_task`.

    Returns:
        A `Task`.

    Raises:
        ValueError: as `classification_task`, with `num_tags` for `num_classes`.

    Source: the StackOverflow task of Reddi et al., Adaptive Federated Optimization (ICLR 2021).

    Examples:
        >>> model = ccfl.models.TagLogistic(vocabulary_size=6, num_tags=3)
        >>> task = ccfl.tags_task(model, input_shape=(4,), num_tags=3)
        >>> texts = {
        ...     "x": np.array([[0, 5, 5, -1], [1, -1, -1, -1]]),
        ...     "y": np.array([[0, 2], [1, -1]]),
        ... }
        >>> scores = ccfl.evaluate(task, task.init(jax.random.key(0)), texts)
        >>> scores["recall_at_5"]  # with three tags all are among the first five
        1.0
    """
    check_whole("num_tags", num_tags, 1)
    init, apply, same = functions(model, input_shape, jnp.int32, (num_tags,), compute_dtype)
    own_step: Any = getattr(model, "descend", None)

    def from_logits(logits: jax.Array, y: jax.Array, mask: jax.Array) -> tuple:
        logits = wide(logits)
        tagged = (y[:, :, None] == jnp.arange(num_tags)[None, None]).any(axis=1)
        # Half the exponentials of optax.sigmoid_binary_cross_entropy, which allows soft labels.
        losses = (jax.nn.softplus(logits) - jnp.where(tagged, logits, 0.0)).sum(axis=1)
        known = ((y >= -1) & (y < num_tags)).all(axis=1)
        return counted(losses, known, mask), mask, logits, tagged

    def rows(params: Params, batch: Batch, mask: jax.Array, key: jax.Array | None) -> tuple:
        x, y = pair(batch, mask, "[B, T]")
        return from_logits(apply(params, x, key), y, mask)

    def measure(losses: jax.Array, mask: jax.Array, logits: jax.Array, tagged: jax.Array) -> dict:
        _, best = jax.lax.top_k(logits, min(5, num_tags))  # of equals the lower index first
        found = jnp.take_along_axis(tagged, best, axis=1).sum(axis=1)
        found = jnp.where(are_numbers(logits), found, jnp.nan)
        return {
            "loss": (losses.sum(), mask.sum()),
            "recall_at_5": (jnp.where(mask, found, 0.0).sum(), (tagged & mask[:, None]).sum()),
        }

    def descend(
        params: Params, batch: Batch, mask: jax.Array, key: jax.Array, rate: float
    ) -> tuple[jax.Array, dict, Params]:
        x, y = pair(batch, mask, "[B, T]")

        def head(logits: jax.Array) -> tuple:
            return observed(from_logits(logits, y, mask), measure)

        seen, slope = jax.value_and_grad(head, has_aux=True)(apply(params, x, key))
        return *seen, own_step(params, x, rate * slope)

    labels, predict = (("y", -1, num_tags - 1),), partial(apply, key=None)
    task = make_task(init, rows, measure, same, labels, predict)
    return task._replace(descend=descend) if same and own_step is not None else task
