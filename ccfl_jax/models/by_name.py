"""Tasks from a record of strings and numbers, which a run keeps in its folder."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from ccfl_jax import models
from ccfl_jax.algorithm.types import Task
from ccfl_jax.checks import one_line
from ccfl_jax.data.image_transforms import CHANNELS, prepare_images
from ccfl_jax.data.readers.stackoverflow_words import special_ids
from ccfl_jax.io import own_code
from ccfl_jax.models.regression_tasks import autoencoder_task
from ccfl_jax.models.sequence_tasks import next_token_task
from ccfl_jax.models.tasks import classification_task, tags_task

RECORD = "task.json"


def task_of(record: Mapping[str, Any]) -> Task:
    """The task that a record describes.

    Args:
        record: `function`, `MODULE:FUNCTION` or `FILE.py:FUNCTION` of a user's own, which returns a
            task or `(task, train, test)`; or `model`, the name of a class of `ccfl_jax.models`,
            with `dtype` and `shape` of a sample, `classes`, `compute_dtype` and `dataset`, whose
            images may be cropped and flipped, or words unscored.

    Raises:
        ValueError: for a function that returns no task, or a model that does not take such samples.
    """
    if "function" in record:
        return _own(record["function"])
    try:
        name, dataset, classes = (record[key] for key in ("model", "dataset", "classes"))
        shape, dtype = (*record["shape"],), jnp.dtype(record["dtype"])
        compute_dtype, model = record["compute_dtype"], getattr(models, name)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"record: expected a model with its samples, found {one_line(repr(error), 80)}"
        ) from None
    if name == "TagLogistic":
        return tags_task(model(num_tags=classes), shape, classes, compute_dtype)
    if name in ("CharLSTM", "WordLSTM"):
        if dtype.kind not in "iu":
            raise ValueError(f"{name}: expected integers, found {dtype}")
        special = special_ids(classes - 4)
        unscored = (special.unknown, special.end) if dataset == "stackoverflow_nwp" else ()
        own = {"unscored": unscored, "compute_dtype": compute_dtype}
        return next_token_task(model(classes), shape, classes, **own)
    if dtype.kind != "f" and dtype != jnp.uint8:
        raise ValueError(f"{name}: expected floats or bytes, found {dtype}")
    if name == "Autoencoder":
        return autoencoder_task(model(), shape, compute_dtype)
    # CIFAR's images are cropped and flipped, the paper's small grey ones are not.
    channels = CHANNELS.get(dataset)
    prepare = None if channels is None else prepare_images(channels, augment=True)
    return classification_task(model(num_classes=classes), shape, classes, compute_dtype, prepare)


def _own(function: str) -> Task:
    found = own_code.called(function)
    found = found[0] if isinstance(found, tuple) and len(found) == 3 else found
    if not isinstance(found, Task):
        raise ValueError(
            f"{function}: expected it to return a ccfl.Task or (task, train, test), found "
            f"{type(found).__name__}"
        )
    return found
