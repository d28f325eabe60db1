"""`clients.csv` of a run, read back."""

import csv
import io
import math
from pathlib import Path

import numpy as np

from ccfl_jax.checks import one_line

from ..training.client_scores import CLIENTS

_HEAD = ["client", "samples", "test_samples"]  # before the scores


def read(folder: Path, column: str | None = None) -> tuple[str, np.ndarray]:
    """The name of a score, and its values `[clients]`; nan where a client has none.

    By default the task's metric, of the models that clients end with: their own or fine-tuned ones,
    where they have such, or else the global one.

    Raises:
        OSError: if it cannot be read.
        ValueError: with the file, and the row, where it is not there or has another form.
    """
    path = folder / CLIENTS
    try:
        head, *rows = csv.reader(io.StringIO(path.read_bytes().decode()), strict=True)
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path}: expected a table, found {one_line(str(error), 80)}") from None
    except FileNotFoundError:
        raise ValueError(f"{path}: expected that of a run with --client_test, found none") from None
    scores = head[len(_HEAD) :]
    if head[: len(_HEAD)] != _HEAD or not scores or not rows:
        found = one_line(",".join(head), 80)
        raise ValueError(
            f"{path}: expected {','.join(_HEAD)}, scores, and clients, found {found!r} and "
            f"{len(rows)} rows"
        )
    name = [own for own in scores if own.endswith(scores[0])][-1] if column is None else column
    if name not in scores:
        raise ValueError(f"{path}: expected --y of {', '.join(scores)}, found {one_line(name, 80)}")
    values = [_number(row, head, name, path, k) for k, row in enumerate(rows)]
    return column or scores[0], np.array(values)


def _number(row: list[str], head: list[str], name: str, path: Path, k: int) -> float:
    """The value of a column; nan where it is empty."""
    text = row[head.index(name)] if len(row) == len(head) else "a row of another length"
    try:
        value = float(text or "nan")
        if text and not math.isfinite(value):
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{path}: expected numbers, found {one_line(text, 80)} in row {k}"
        ) from None
    return value
