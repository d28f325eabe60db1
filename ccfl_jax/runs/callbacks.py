"""Callbacks of `ccfl.train`: `callback(rows, state) -> bool | None`, True ends training."""

from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from ccfl_jax.checks import check_whole, one_line
from ccfl_jax.engine.state import State
from ccfl_jax.runs import targets
from ccfl_jax.runs.metrics import Row, goodness


@dataclass
class ToTarget:
    """Ends training where a score is reached.

    Attributes:
        text: `NAME>=NUMBER` or `NAME<=NUMBER`; a metric on the test set, or a column of the rows.

    Raises:
        ValueError: if the text says none; when called, if rows have no such column.
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
    """Writes the numbers of every row as TensorBoard's event files, by round.

    Needs `pip install 'ccfl_jax[tensorboard]'`.

    Attributes:
        folder: for the files.
    """

    folder: str | PathLike
    writer: Any = field(init=False)

    def __post_init__(self) -> None:
        try:
            from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError(
                "tensorboardX: expected its package (pip install 'ccfl_jax[tensorboard]'), found "
                f"{one_line(str(error))}"
            ) from error
        self.writer = SummaryWriter(str(self.folder))

    def __call__(self, rows: list[Row], state: State) -> None:
        row = rows[-1]
        for name, value in row.items():
            if isinstance(value, int | float) and name != "round":
                part, _, metric = name.partition("_")
                tag = f"{part}/{metric}" if part in ("train", "test", "validation") else name
                self.writer.add_scalar(tag, value, row["round"])
        self.writer.flush()
