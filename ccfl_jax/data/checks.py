"""Checks of arguments that several modules of this package share."""

from typing import Any

import numpy as np

from ccfl_jax.checks import check_whole


def integer_vector(name: str, values: Any) -> np.ndarray:
    """Returns `values` as a NumPy array [N]; ValueError unless 1-D and of an integer dtype."""
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"{name}: found {array.dtype} {array.shape}, legal: a 1-D integer array")
    return array


def check_labels(labels: np.ndarray, num_classes: int, name: str) -> None:
    """Raises ValueError unless every label is in 0..num_classes-1.

    Args:
        labels: integer array [N].
        num_classes: number of classes.
        name: what the labels belong to, for the message.

    Raises:
        ValueError: `labels` is not a 1-D integer array, or holds a value outside the range; the
            message gives the lowest such value, how often it occurs, and the legal range.
    """
    check_whole("num_classes", num_classes, 1)
    array = integer_vector(f"labels of {name}", labels)
    illegal, counts = np.unique(array[(array < 0) | (array >= num_classes)], return_counts=True)
    if illegal.size:
        others = f"; {illegal.size - 1} other values are illegal too" if illegal.size > 1 else ""
        raise ValueError(
            f"labels of {name}: found label {illegal[0]} ({counts[0]} times{others}), "
            f"legal: 0 to {num_classes - 1}"
        )
