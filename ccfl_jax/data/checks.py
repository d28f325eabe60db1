"""Checks of arguments that several modules of this package share."""

import math
from numbers import Real
from typing import Any

import numpy as np


def is_integer(value: Any) -> bool:
    """Whether `value` is one integer; a bool is not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_count(name: str, value: Any, minimum: int) -> None:
    """Raises ValueError unless `value` is an integer of at least `minimum`."""
    if not is_integer(value) or value < minimum:
        raise ValueError(f"{name}: found {value!r}, legal: a whole number from {minimum} on")


def check_seed(seed: Any) -> None:
    """Raises ValueError unless `seed` is an integer in 0..2**32-1."""
    if not is_integer(seed) or not 0 <= seed < 2**32:
        raise ValueError(f"seed: found {seed!r}, legal: a whole number from 0 to {2**32 - 1}")


def check_finite(name: str, value: Any) -> None:
    """Raises ValueError unless `value` is one finite real number; a bool is not."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{name}: found {value!r}, legal: a finite number")


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
    check_count("num_classes", num_classes, 1)
    array = integer_vector(f"labels of {name}", labels)
    illegal, counts = np.unique(array[(array < 0) | (array >= num_classes)], return_counts=True)
    if illegal.size:
        others = f"; {illegal.size - 1} other values are illegal too" if illegal.size > 1 else ""
        raise ValueError(
            f"labels of {name}: found label {illegal[0]} ({counts[0]} times{others}), "
            f"legal: 0 to {num_classes - 1}"
        )
