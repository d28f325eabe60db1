"""Callbacks of `ccfl.train`: `callback(rows, state) -> bool | None`, True ends training."""

import importlib
import os
import re
import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from socket import gethostname
from typing import Any

from ccfl_jax.checks import check_whole, one_line
from ccfl_jax.engine.state import State
from ccfl_jax.runs import targets
from ccfl_jax.runs.metrics import Row, goodness

EVENTS = "tensorboard"  # the folder of event files in that of a run or a sweep
_OWN = r"events\.out\.tfevents\.\d{1,12}\..*\.ccfl"  # names of files that may be cut


@dataclass
class ToTarget:
    """Ends training where a score is reached.

    Attributes:
        text: `NAME>=NUMBER` or `NAME<=NUMBER`; a metric on the test set, or a column of the rows.

    Raises:
        ValueError: if the text says none; when called, if rows have no such column.

    Examples:
        >>> enough = ccfl.callbacks.ToTarget(
        ...     "accuracy>=0.9"
        ... )  # for `ccfl.train(..., callbacks=[enough])`
        >>> enough([{"round": 10, "test_accuracy": 0.84}], None)
        False
        >>> enough([{"round": 20, "test_accuracy": 0.91}], None)
        True
    """

    text: str
    target: targets.Target = field(init=False)

    def __post_init__(self) -> None:
        self.target = targets.target(self.text)

    def __call__(self, rows: list[Row], state: State) -> bool:
        targets.check_row(self.target, rows[-1])
        return targets.is_reached(rows[-1], self.target)


@dataclass
class EarlyStopping:
    """Ends training after some evaluations without a better score.

    Attributes:
        column: of the rows, as `test_loss`.
        patience: evaluations in a row that are no better than the best before.
        least: by how much a score has to be better.
        is_better_high: whether a higher score is the better one; by default unless its name ends in
            loss or error.

    Examples:
        >>> patient = ccfl.callbacks.EarlyStopping("test_loss", patience=2)
        >>> rows = [{"test_loss": loss} for loss in (3.0, 2.0, 2.0, 4.0)]
        >>> patient(rows[:3], None), patient(rows, None)
        (False, True)
    """

    column: str = "test_loss"
    patience: int = 5
    least: float = 0.0
    is_better_high: bool | None = None

    def __post_init__(self) -> None:
        check_whole("patience", self.patience, 1)
        if self.is_better_high is None:
            self.is_better_high = goodness(self.column, 1.0) > 0

    def __call__(self, rows: list[Row], state: State) -> bool:
        if self.column not in rows[-1]:
            raise ValueError(
                f"column: expected one of the rows, as test_loss, found {self.column!r}"
            )
        sign = 1 if self.is_better_high else -1
        scores = [-float("inf") if v is None else sign * v for v in (r[self.column] for r in rows)]
        best, since = scores[0], 0
        for score in scores[1:]:
            best, since = (score, 0) if score > best + self.least else (best, since + 1)
        return since >= self.patience


@dataclass
class TensorBoard:
    """Writes the numbers of every row as a TensorBoard event file, by round.

    At its first call all rows so far are written. A file that an earlier callback has left in the
    folder is kept as far as it has the same rows, and goes on from there: what is resumed has every
    round once, and a TensorBoard that shows it goes on too. Times are the seconds of training after
    the file's begin. Needs `pip install 'ccfl_jax[tensorboard]'`.

    Attributes:
        folder: for the file, made where it is missing; one run has it.

    Raises:
        ImportError: without tensorboardX.

    Examples:
        >>> import pathlib
        >>> write = ccfl.callbacks.TensorBoard("runs/board")  # then `tensorboard --logdir=runs`
        >>> write([{"round": 10, "test_accuracy": 0.84}], None)
        >>> len([*pathlib.Path("runs/board").glob("events*")])
        1
    """

    folder: str | PathLike
    _path: Path | None = field(default=None, init=False)
    _begin: float = field(default=0.0, init=False)
    _written: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        _package()

    def __call__(self, rows: list[Row], state: State | None = None) -> None:
        kept = self._written
        if self._path is None or len(rows) < kept:  # another run
            self._path = self._found()
            kept = self._cut(self._path, rows)
        with open(self._path, "ab") as file:
            file.write(b"".join(map(self._record, rows[kept:])))
        self._written = len(rows)

    def _found(self) -> Path:
        """The file that an earlier callback has left in the folder, or a new one."""
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        begin = datetime.now(UTC).timestamp()
        new = folder / f"events.out.tfevents.{begin:.0f}.{gethostname()}.ccfl"
        path = min((p for p in folder.iterdir() if re.fullmatch(_OWN, p.name)), default=new)
        self._begin = float(path.name.split(".")[3])
        return path

    def _cut(self, path: Path, rows: list[Row]) -> int:
        """Cuts the file behind the last row that it has; returns how many these are."""
        head = _record(self._begin, 0, file_version="brain.Event:2")
        data = path.read_bytes() if path.exists() else b""
        if not data.startswith(head):
            path.write_bytes(head)
            return 0
        end, kept = len(head), 0
        for record in map(self._record, rows):
            if not data.startswith(record, end):
                break
            end, kept = end + len(record), kept + 1
        os.truncate(path, end)
        return kept

    def _record(self, row: Row) -> bytes:
        """A row as a record, the same whenever it is made."""
        values = [{"tag": tag, "simple_value": value} for tag, value in _tags(row)]
        seconds = row.get("seconds") or 0.0
        return _record(self._begin + seconds, row["round"], summary={"value": values})


def _package() -> tuple[Any, Any]:
    """tensorboardX's message of an event, and its checksum of a record's parts."""
    try:
        messages: Any = importlib.import_module("tensorboardX.proto.event_pb2")
        records: Any = importlib.import_module("tensorboardX.record_writer")
    except ImportError as error:
        raise ImportError(
            "tensorboardX: expected its package (pip install 'ccfl_jax[tensorboard]'), found "
            f"{one_line(str(error))}"
        ) from error
    return messages.Event, records.masked_crc32c


def _record(wall_time: float, step: int, **content: Any) -> bytes:
    """A record of an event file: length, checksum of it, event, checksum of that."""
    event, checksum = _package()
    data = event(wall_time=wall_time, step=step, **content).SerializeToString(deterministic=True)
    size = struct.pack("<Q", len(data))
    return size + struct.pack("<I", checksum(size)) + data + struct.pack("<I", checksum(data))


def _tags(row: Row) -> list[tuple[str, float]]:
    """The numbers of a row by the names that group them."""
    found = []
    for name, value in row.items():
        if isinstance(value, int | float) and name != "round":
            part, _, metric = name.partition("_")
            is_score = part in ("train", "test", "validation")
            found.append((f"{part}/{metric}" if is_score else name, value))
    return found
