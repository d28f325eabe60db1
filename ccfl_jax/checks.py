"""Checks of arguments that several modules share, with errors of one form."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

_PROMOTION = "jax_numpy_dtype_promotion"


def is_whole(value: Any) -> bool:
    """Whether `value` is one integer; a bool is not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def plain(value: Any) -> Any:
    """`value`, as Python's if it is a number of NumPy: its short and unsigned ones overflow."""
    return value.item() if isinstance(value, np.number) else value


def check_whole(name: str, value: int, least: int, most: int | None = None) -> int:
    """Raises ValueError unless `value` is an integer in [least, most]; it as Python's."""
    if not is_whole(value) or value < least or (most is not None and value > most):
        bounds = f">= {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name}: expected an integer {bounds}, found {value!r}")
    return int(value)


def check_seed(seed: int) -> None:
    """Raises ValueError for a seed that NumPy's and JAX's generators do not both take."""
    check_whole("seed", seed, 0, 2**32 - 1)


def check_work(local_work: int, randomness: float) -> int:
    """K R, the most work of a client; ValueError unless it is an integer in [1, 2**31)."""
    most = plain(local_work) * plain(randomness)
    is_bool = isinstance(randomness, bool | np.bool_)
    if is_bool or not (1 <= most < 2**31 and most == int(most)):
        raise ValueError(
            f"local_work * randomness: expected an integer >= 1, found {local_work} * {randomness} "
            f"= {most}"
        )
    return int(most)


def check_number(
    name: str,
    value: float,
    least: float = 0.0,
    most: float = math.inf,
    above: bool = False,
    below: bool = False,
) -> None:
    """Raises ValueError unless `value` is finite and in [least, most]; `above`, it is more than
    `least`; `below`, less than `most`."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    inside = real and math.isfinite(value) and least <= value <= most
    if inside and not (above and value == least) and not (below and value == most):
        return
    bounds = (f" {'>' if above else '>='} {least:g}" if least > -math.inf else "") + (
        f" and {'<' if below else '<='} {most:g}" if most < math.inf else ""
    )
    raise ValueError(f"{name}: expected a finite number{bounds}, found {value!r}")


def check_known(
    name: str,
    value: Any,
    least: float = 0.0,
    most: float = math.inf,
    above: bool = False,
    below: bool = False,
) -> Any:
    """The number, as Python's where it is NumPy's; ValueError as `check_number`, and for one that
    is 0 or infinite on a device, unless it is an argument of a program, which is not known yet."""
    if isinstance(value, Tracer):
        return value
    number = (
        value.item()
        if isinstance(value, jax.Array | np.ndarray) and not value.ndim
        else plain(value)
    )
    check_number(name, number, least, most, above, below)
    held = np.finfo(jax.dtypes.canonicalize_dtype(np.float64))
    if not (number == 0 or float(held.tiny) <= abs(number) <= float(held.max)):
        raise ValueError(
            f"{name}: expected 0, or a number of {held.dtype} (or jax_enable_x64), found {number!r}"
        )
    return plain(value)


def check_kind(name: str, value: Any, kind: Any, words: str) -> None:
    """Raises ValueError unless `value` is of this kind, which the message calls `words`."""
    if not isinstance(value, kind):
        raise ValueError(f"{name}: expected {words}, found {one_line(repr(value), 80)}")


def check_promotion() -> None:
    """Raises ValueError where JAX was told not to promote numbers of different dtypes."""
    found = getattr(jax.config, _PROMOTION)
    if found != "standard":
        raise ValueError(f"{_PROMOTION}: expected standard, found {found}")


def unmasked(name: str, values: Any) -> np.ndarray:
    """`values` as a NumPy array; ValueError if some are masked: those would come back."""
    if np.ma.is_masked(values):
        raise ValueError(f"{name}: expected no masked numbers, found {np.sum(values.mask)}")
    return np.asarray(values)


def device_bytes() -> int:
    """Bytes of a device's memory; of this machine's where the backend does not tell."""
    here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", here)


def integer_vector(name: str, values: Any) -> np.ndarray:
    """Returns `values` as a NumPy array [N]; ValueError unless 1-D and of an integer dtype."""
    array = unmasked(name, values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"{name}: expected a 1-D integer array, found {array.dtype} {array.shape}")
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

    Examples:
        >>> ccfl.data.check_labels(np.array([0, 2, 1]), num_classes=3, name="train")
        >>> ccfl.data.NUM_CLASSES["digits"]
        10
    """
    check_whole("num_classes", num_classes, 1)
    array = integer_vector(f"labels of {name}", labels)
    illegal, counts = np.unique(array[(array < 0) | (array >= num_classes)], return_counts=True)
    if illegal.size:
        others = f"; {illegal.size - 1} other values are illegal too" if illegal.size > 1 else ""
        raise ValueError(
            f"labels of {name}: expected 0 to {num_classes - 1}, found label {illegal[0]} ("
            f"{counts[0]} times{others})"
        )


@contextmanager
def naming(place: str | os.PathLike) -> Iterator[None]:
    """Puts the file's name in front of an error's message, in one line.

    OverflowError, a number too large, becomes ValueError.
    """
    try:
        yield
    except OSError as error:
        raise type(error)(f"{os.fspath(place)}: {error.strerror or error}") from None
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{os.fspath(place)}: {one_line(str(error))}") from None


def one_line(text: str, most: int = 300) -> str:
    """`text`, which may quote a file, as one line of at most `most` characters."""
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(shown)[:most]
