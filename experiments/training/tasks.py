"""The task of a run: a model by name, for data like its own."""

import numpy as np

import ccfl_jax as ccfl
from ccfl_jax import models
from ccfl_jax.data.arrays import faults
from ccfl_jax.data.image_transforms import CHANNELS, prepare_images

from ..config.flag_rules import MODELS


def task_of(
    dataset: str, model: str, compute_dtype: str, train: dict[str, np.ndarray], classes: int
) -> ccfl.Task:
    """The task for data like `train`, of so many classes.

    Raises:
        ValueError: for a model that does not take such samples.
    """
    x, module = train["x"], getattr(models, MODELS[model])
    if model == "tags":
        return ccfl.tags_task(module(num_tags=classes), x.shape[1:], classes, compute_dtype)
    # CIFAR's images are cropped and flipped, the paper's small grey ones are not.
    channels = CHANNELS.get(dataset)
    prepare = None if channels is None else prepare_images(channels, augment=True)
    try:
        if x.dtype.kind != "f" and x.dtype != np.uint8:
            raise ValueError(f"{model}: expected floats or bytes, found {x.dtype}")
        return ccfl.classification_task(
            module(num_classes=classes), x.shape[1:], classes, compute_dtype, prepare
        )
    except ValueError as error:
        raise ValueError(
            f"--model: expected one for samples {x.dtype} {list(x.shape[1:])}, found {model} with "
            f"--dataset={dataset} ({error})"
        ) from None


def check_samples(dataset: str, task: ccfl.Task, *parts: dict[str, np.ndarray] | None) -> None:
    """Raises ValueError for rows of training, test or held-out samples that cannot be used."""
    for name, part in zip(("training", "test", "held-out"), parts, strict=True):
        for line in faults(part or {}, task.labels):
            raise ValueError(f"--dataset: {dataset}, {name} {line}")
