"""The task of a run: a model by name, for data like its own."""

from typing import Any

import numpy as np

import ccfl_jax as ccfl
from ccfl_jax.data.arrays import faults
from ccfl_jax.engine.method_checks import check_functions
from ccfl_jax.io import own_code
from ccfl_jax.models import by_name

from ..config.datasets import MODELS, OWN_TASK
from ..config.expression import expression
from ..config.methods import ON_DATA, named
from ..config.run_flags import Config
from .parts import arrays_of

_SEQUENCES = ("char_lstm", "word_lstm")


def record(
    dataset: str, model: str, compute_dtype: str, train: dict[str, np.ndarray], classes: int | None
) -> dict[str, Any]:
    """What `models.by_name` makes the task of, for data like `train`, of so many classes."""
    if own := expression(model, (OWN_TASK,)):
        return {"function": own[1][0]}
    x = train["x"]
    return {
        "model": MODELS[model],
        "dataset": dataset,
        "dtype": str(x.dtype),
        "shape": [*x.shape[1:]],
        "classes": classes,
        "compute_dtype": compute_dtype,
    }


def task_of(
    dataset: str, model: str, compute_dtype: str, train: dict[str, np.ndarray], classes: int | None
) -> ccfl.Task:
    """The task for data like `train`, of so many classes.

    Raises:
        ValueError: for a model that does not take such samples, or a function that returns no task.
    """
    own = record(dataset, model, compute_dtype, train, classes)
    if "function" in own:
        return by_name.task_of(own)
    try:
        task = by_name.task_of(own)
        if model in _SEQUENCES:
            _check_ids(train["x"], classes)
        return task
    except ValueError as error:
        raise ValueError(
            f"--model: expected one for samples {own['dtype']} {own['shape']}, found {model} with "
            f"--dataset={dataset} ({error})"
        ) from None


def _check_ids(x: np.ndarray, classes: int | None) -> None:
    """Raises ValueError for ids other than 0 to `classes` - 1."""
    if classes is None or x.min() < 0 or x.max() >= classes:
        raise ValueError(
            f"ids: expected integers from 0 to {(classes or 0) - 1}, found {x.dtype} from "
            f"{x.min()} to {x.max()}"
        )


def digest(config: Config) -> dict[str, str]:
    """The provenance of a task of one's own: its module's source."""
    return (
        {} if config.task is None else {f"task[{config.task}]": own_code.source_digest(config.task)}
    )


def check_samples(dataset: str, task: ccfl.Task, *parts: dict[str, np.ndarray] | None) -> None:
    """Raises ValueError for training, test or held-out samples that cannot be used: for a task
    that does not take them, for rows that are not finite, for unknown labels."""
    check_functions(task, *(arrays_of(part) for part in parts if part is not None))
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
