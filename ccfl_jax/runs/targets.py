"""Targets: a score that a run is to reach, and what it took."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ccfl_jax.runs.metrics import Row

_PARTS = ("train", "validation", "test")


class Target(NamedTuple):
    """A score that is high or low enough.

    Attributes:
        name: of a metric, on the test set, or of a column of a row.
        at_least: whether it has to be at least the value, or else at most.
        value: the bound.
    """

    name: str
    at_least: bool
    value: float


def target(text: str) -> Target:
    """The target that `NAME>=NUMBER` or `NAME<=NUMBER` says: `accuracy>=0.8`, `train_loss<=0.1`.

    Raises:
        ValueError: if it says none.
    """
    found = re.fullmatch(
        r"\s*(\w+)\s*([<>])=\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*", text
    )
    digits = found and re.search("[1-9]", re.split("[eE]", found[3])[0])
    # Beyond floats is another number than was asked for.
    if found is None or math.isinf(float(found[3])) or (digits and not float(found[3])):
        raise ValueError(f"target: expected NAME>=NUMBER or NAME<=NUMBER, found {text!r}")
    return Target(found[1], found[2] == ">", float(found[3]))


def check(target: Target, metrics: Iterable[str]) -> None:
    """Raises ValueError for a target that is no column of a task with these metrics."""
    known = {"loss", *metrics}
    if target.name not in known | {f"{part}_{name}" for part in _PARTS for name in known}:
        raise ValueError(
            f"target: expected a metric of the task, {', '.join(sorted(known))}, found "
            f"{target.name!r}"
        )


def check_row(target: Target, row: Row) -> None:
    """`check`, with the metrics that a row has."""
    check(target, [name[5:] for name in row if name.startswith("test_")])


def is_reached(row: Row, target: Target) -> bool:
    """Whether a row has the score; one without a value has not."""
    value = row[target.name] if target.name in row else row.get(f"test_{target.name}")
    if value is None:
        return False
    return value >= target.value if target.at_least else value <= target.value


def first(rows: Sequence[Row], target: Target) -> Row | None:
    """The first row that has the score."""
    return next((row for row in rows if is_reached(row, target)), None)
