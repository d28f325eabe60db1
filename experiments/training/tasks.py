"""The task of a run: a model by name, for data like its own."""

import numpy as np

import ccfl_jax as ccfl
from ccfl_jax import models
from ccfl_jax.data.arrays import faults
from ccfl_jax.data.image_transforms import CHANNELS, prepare_images
from ccfl_jax.data.readers.stackoverflow_words import special_ids
from ccfl_jax.io import own_code

from ..config.datasets import MODELS, OWN_TASK
from ..config.expression import expression
from ..config.methods import ON_DATA, named
from ..config.run_flags import Config

_SEQUENCES = ("char_lstm", "word_lstm")


def task_of(
    dataset: str, model: str, compute_dtype: str, train: dict[str, np.ndarray], classes: int | None
) -> ccfl.Task:
    """The task for data like `train`, of so many classes.

    Raises:
        ValueError: for a model that does not take such samples, or a function that returns no task.
    """
    if own := expression(model, (OWN_TASK,)):
        return _own(*own[1])
    x, module = train["x"], getattr(models, MODELS[model])
    shape = x.shape[1:]
    if model == "tags":
        return ccfl.tags_task(module(num_tags=classes), shape, classes, compute_dtype)
    # CIFAR's images are cropped and flipped, the paper's small grey ones are not.
    channels = CHANNELS.get(dataset)
    prepare = None if channels is None else prepare_images(channels, augment=True)
    try:
        if model in _SEQUENCES:
            return _sequences(dataset, module(classes), compute_dtype, x, classes)
        if x.dtype.kind != "f" and x.dtype != np.uint8:
            raise ValueError(f"{model}: expected floats or bytes, found {x.dtype}")
        if model == "autoencoder":
            return ccfl.autoencoder_task(module(), shape, compute_dtype)
        return ccfl.classification_task(
            module(num_classes=classes), shape, classes, compute_dtype, prepare
        )
    except ValueError as error:
        raise ValueError(
            f"--model: expected one for samples {x.dtype} {list(shape)}, found {model} with "
            f"--dataset={dataset} ({error})"
        ) from None


def _sequences(
    dataset: str, module: models.CharLSTM, compute_dtype: str, x: np.ndarray, classes: int
) -> ccfl.Task:
    """Next-token prediction of ids 0 to `classes` - 1."""
    if x.dtype.kind not in "iu" or x.min() < 0 or x.max() >= classes:
        raise ValueError(
            f"ids: expected integers from 0 to {classes - 1}, found {x.dtype} from {x.min()} to "
            f"{x.max()}"
        )
    special = special_ids(classes - 4)
    unscored = (special.unknown, special.end) if dataset == "stackoverflow_nwp" else ()
    return ccfl.next_token_task(
        module, x.shape[1:], classes, unscored=unscored, compute_dtype=compute_dtype
    )


def _own(function: str) -> ccfl.Task:
    """The task that a user's own function returns, alone or before its data."""
    found = own_code.called(function)
    found = found[0] if isinstance(found, tuple) and len(found) == 3 else found
    if not isinstance(found, ccfl.Task):
        raise ValueError(
            f"--task: expected {function} to return a ccfl.Task or (task, train, test), found "
            f"{type(found).__name__}"
        )
    return found


def digest(config: Config) -> dict[str, str]:
    """The provenance of a task of one's own: its module's source."""
    return (
        {} if config.task is None else {f"task[{config.task}]": own_code.source_digest(config.task)}
    )


def check_samples(dataset: str, task: ccfl.Task, *parts: dict[str, np.ndarray] | None) -> None:
    """Raises ValueError for rows of training, test or held-out samples that cannot be used."""
    for name, part in zip(("training", "test", "held-out"), parts, strict=True):
        for line in faults(part or {}, task.labels):
            raise ValueError(f"--dataset: {dataset}, {name} {line}")


def check_labels(config: Config, num_classes: int | None) -> None:
    """Raises ValueError for an attack on labels of samples that have not one each."""
    if num_classes is None and config.attack and named("attack", config.attack)[0] == ON_DATA:
        raise ValueError(
            f"--attack: expected {ON_DATA} with one label a sample, found {config.attack} with "
            f"--dataset={config.dataset}"
        )
