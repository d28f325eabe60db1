"""What is checked of samples in a user's own files, whatever the form of the files."""

from collections.abc import Callable, Sequence
from functools import partial
from reprlib import repr as shortened
from typing import Any

import numpy as np

from ccfl_jax.checks import one_line
from ccfl_jax.data.arrays import rows_where

_INT32 = np.iinfo(np.int32)


def inputs(place: str, x: np.ndarray) -> np.ndarray:
    """Inputs `[N, ...]` in a dtype of the house.

    Floats and bools become float32. Bytes (uint8) are pixels and stay; such `[N, h, w]` are grey
    images, which become `[N, h, w, 1]`. Other integers, of tokens say, become int32.

    Args:
        place: what they are, for messages: a file and a name, say.
        x: numbers.

    Raises:
        ValueError: no numbers, no rows, nan or inf, or a number that float32 or int32 cannot hold,
            with its row.
    """
    if x.ndim < 1 or x.dtype.kind not in "biuf" or not x.size:
        raise ValueError(f"{place}: expected numbers [N, ...], found {x.dtype} {list(x.shape)}")
    if x.dtype == np.uint8:
        return x[..., None] if x.ndim == 3 else x
    if x.dtype.kind in "iu":
        wide = f"integers of {_INT32.bits} bits"
        _refuse(place, wide, x, lambda own: (own < _INT32.min) | (own > _INT32.max))
        return x.astype(np.int32, copy=False)
    with np.errstate(over="ignore"):
        single = partial(np.asarray, dtype=np.float32)
        _refuse(place, "finite numbers of float32", x, lambda own: ~np.isfinite(single(own)))
        return single(x)


def labels(place: str, y: np.ndarray, rows: int, most: int | None = None) -> np.ndarray:
    """Labels int32 `[rows]` from 0 to `most`; whole floats are integers too.

    Raises:
        ValueError: another length or shape, or with its row a label that is none.
    """
    if y.shape != (rows,) or y.dtype.kind not in "biuf":
        raise ValueError(
            f"{place}: expected one label for each of {rows} rows, found {y.dtype} {list(y.shape)}"
        )

    def wrong(own: np.ndarray) -> np.ndarray:
        whole = own == np.floor(own) if own.dtype.kind == "f" else True
        return ~((own >= 0) & (own <= (most or _INT32.max)) & whole)

    expected = "integers from 0" if most is None else f"integers from 0 to {most}"
    _refuse(place, expected, y, wrong)
    return y.astype(np.int32, copy=False)


def clients(place: str, ids: np.ndarray, rows: int) -> np.ndarray:
    """int32 `[rows]`: the client of each row, numbered as `client_numbers`, which raises too."""
    if ids.shape == (rows,) and ids.dtype.kind in "iu":
        return np.unique(ids, return_inverse=True)[1].astype(np.int32)
    own = np.atleast_1d(ids).tolist()
    numbers = client_numbers(place, own, rows)
    return np.array([numbers[one] for one in own], np.int32)


def client_numbers(place: str, ids: Sequence, rows: int) -> dict[Any, int]:
    """id -> number of the clients of `rows` rows, as their ids, integers or texts, ascend.

    Raises:
        ValueError: another length, or with its row an id of another kind.
    """
    if len(ids) != rows:
        raise ValueError(f"{place}: expected one id for each of {rows} rows, found {len(ids)}")
    kind = str if isinstance(ids[0], str) else int
    for row, own in enumerate(ids):
        if type(own) is not kind:
            raise ValueError(
                f"{place}: expected ids that are all integers or all texts, found "
                f"{shortened(own)} in row {row}"
            )
    return {own: number for number, own in enumerate(sorted({*ids}))}


def check_alike(place: str, train: dict[str, np.ndarray], test: dict[str, np.ndarray]) -> None:
    """Raises ValueError where "x" of the parts have other shapes or dtypes."""
    kinds = [f"{part['x'].dtype} {list(part['x'].shape[1:])}" for part in (train, test)]
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"{place}: expected samples like those of training, {kinds[0]}, found {kinds[1]}"
        )


def count_classes(place: str, train: dict[str, np.ndarray], test: dict[str, np.ndarray]) -> int:
    """The number of classes: 1 + the largest label of both parts.

    Raises:
        ValueError: a label of 1,000 or more is not below the number of rows, so that it numbers no
            class; a model of so many classes would not fit anywhere.
    """
    found = 1 + max(int(part["y"].max()) for part in (train, test))
    most = max(1000, len(train["y"]) + len(test["y"]))
    if found > most:
        raise ValueError(f"{place}: expected labels below {most}, found {found - 1}")
    return found


def _refuse(place: str, expected: str, array: np.ndarray, wrong: Callable) -> None:
    """Raises ValueError with the first row of which `wrong(rows)`, bool as these, is True."""
    rows = rows_where(wrong, array)
    if len(rows):
        row = rows[0]
        value = array[row : row + 1][wrong(array[row : row + 1])][0]
        raise ValueError(
            f"{place}: expected {expected}, found {one_line(str(value), 40)} in row {row}"
        )
