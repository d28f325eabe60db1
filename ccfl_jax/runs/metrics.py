"""The metrics of a run: their rows, in `metrics.jsonl`.

A run folder holds `config.json` (`run_config`), `metrics.jsonl` (one strict JSON object a line,
rising in `round`), `schedule.npz`, `checkpoints/`, once drawn `curves.png`, and `lock` while a
process trains. Nothing here runs inside a compiled program. Of several processes the first writes.
"""

import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ccfl_jax.algorithm.types import Params
from ccfl_jax.checks import one_line
from ccfl_jax.engine.state import Info
from ccfl_jax.io.files import append_line, as_json, replace_file
from ccfl_jax.schedules.schedule import Schedule

METRICS, SCHEDULE = "metrics.jsonl", "schedule.npz"

_BLOWN_UP = 1000.0

Row = dict[str, Any]  # a line of the metrics, by column


class Run(NamedTuple):
    """What all rows of a run need.

    Attributes:
        schedule: from round 0 on.
        sent: bytes that a client sends and receives in a visit.
        max_rejected: the run has diverged if more uploads are rejected; None: no limit.
    """

    schedule: Schedule
    sent: tuple[int, int]
    max_rejected: int | None = None


def append_rows(folder: str | os.PathLike, rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Adds lines to `metrics.jsonl`, all or none; returns the rows as written.

    Numbers that are not finite become None. A row of trials trained together names its `trial`.
    """
    kept = [*map(plain, rows)]
    if jax.process_index() == 0 and kept:
        lines = (json.dumps(row, allow_nan=False) for row in kept)
        append_line(Path(folder) / METRICS, "\n".join(lines))
    return kept


def plain(row: Mapping[str, Any]) -> Row:
    """A row of Python's numbers; None for those that are not finite."""
    return {name: _plain(value) for name, value in row.items()}


def read_rows(folder: str | os.PathLike) -> list[Row]:
    """The rows of `metrics.jsonl`; a last line that was cut off while it was written is left out.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a line is not JSON.
    """
    path = Path(folder) / METRICS
    lines = path.read_bytes().split(b"\n")
    rows = [as_json(line, path) for line in lines[:-1]]  # a whole line ends in a newline
    for row in rows:
        if not isinstance(row, dict) or type(row.get("round")) is not int:
            raise ValueError(
                f"{path}: expected a row with its round, found {one_line(str(row), 80)}"
            )
    return rows


def keep_rows(folder: str | os.PathLike, counts: Mapping[str, int]) -> list[list[Row]]:
    """Cuts `metrics.jsonl` back to the first rows of each trial, and returns those of each.

    Args:
        folder: of the run, or of trials trained together.
        counts: rows to keep of each trial; the trial of a run's own rows is "".

    Raises:
        ValueError: if there are fewer, or their rounds do not rise.
    """
    path = Path(folder) / METRICS
    found: dict[str, list[Row]] = {name: [] for name in counts}
    kept = []
    for row in read_rows(folder) if path.exists() else []:
        trial = row.get("trial", "")
        if len(found.get(trial, ())) < counts.get(trial, 0):
            found[trial].append({name: value for name, value in row.items() if name != "trial"})
            kept.append(row)
    for name, rows in found.items():
        if len(rows) < counts[name]:
            raise ValueError(
                f"{path}: expected {counts[name]} rows, as in the checkpoint, found {len(rows)}"
            )
        rounds = [row["round"] for row in rows]
        if any(later <= earlier for earlier, later in itertools.pairwise(rounds)):
            raise ValueError(f"{path}: expected rising rounds, found {rounds}")
    text = "".join(json.dumps(row) + "\n" for row in kept)
    if jax.process_index() == 0 and path.exists() and text != path.read_text():
        replace_file(path, text)
    return [*found.values()]


def first_row(test: Mapping[str, float], compile_seconds: float, has_clock: bool = False) -> Row:
    """The row of x_0, before training: the training columns are None.

    Args:
        test, compile_seconds: as for `next_row`.
        has_clock: whether the schedule has times; `virtual_time` is then 0, otherwise None.
    """
    finite = math.isfinite(test["loss"])
    return {
        "round": 0,
        **{f"train_{name}": None for name in _metrics(test)},
        **{f"test_{name}": test[name] for name in _metrics(test)},
        "participants": None,
        "rejected": None,
        "rejected_clients": None,
        "mean_staleness": None,
        "mean_steps": None,
        "client_updates": 0,
        "samples": 0,
        "bytes_sent": 0,
        "bytes_received": 0,
        "virtual_time": 0.0 if has_clock else None,
        "seconds": 0.0,
        "compile_seconds": compile_seconds,
        "diverged": not finite,
        "diverged_at": None if finite else 0,
    }


def next_row(
    rows: Sequence[Row],
    run: Run,
    info: Info,
    test: Mapping[str, float],
    seconds: float,
    compile_seconds: float | None,
) -> Row:
    """The row after `rows`, for the rounds of `info` (stacked `[rounds, ...]`).

    Args:
        rows: all rows before, whose sums continue.
        run: of the run.
        info: the rounds since the last row.
        test: "loss" and the task's other metrics, of the model after them, by `evaluate`; nan
            where it is not finite.
        seconds: of those rounds, without compilation and evaluation.
        compile_seconds: in the first row that a process writes, otherwise None.

    Returns:
        `round`, the server updates made: the row describes x_round. Since the previous row:
        `train_loss` and the other metrics, means over rounds of each round's unweighted mean over
        the uploads that counted (rounds without any left out, None without such a round);
        `participants` and `rejected`, sums over rounds; `rejected_clients`, client -> how often;
        `mean_staleness` and `mean_steps`, over all returned slots. Since round 0:
        `client_updates` (returned slots, rejected ones too), `samples` (without masked work) and
        `seconds`; `bytes_sent`, the clients' uploads, `client_updates` times what one
        takes, and `bytes_received`, the same for their downloads. Both are without tasks that the
        clock dropped, which fill no slot; the clock's log has them. `virtual_time`: seconds on
        the schedule's clock at the end of the last round, None without a clock.

        `diverged`: the model is not finite, its test loss is a thousand times that of x_0 (at least
        1; a run may recover from it), or too many uploads were rejected; `diverged_at`: the round
        since which, the first after which the model was not finite, or that of the first such
        row.
    """
    previous = rows[-1]
    counted, left_out = np.asarray(info.participants) > 0, int(np.sum(info.rejected))
    begin, done = previous["round"], previous["round"] + len(counted)
    returned, clients = np.asarray(info.present), np.asarray(run.schedule.client)[begin:done]
    updates = previous["client_updates"] + int(returned.sum())
    limit = math.inf if run.max_rejected is None else run.max_rejected
    rejected = left_out + _rejected(rows)
    lost = not math.isfinite(test["loss"]) or rejected > limit
    diverged = lost or test["loss"] > _BLOWN_UP * max(rows[0]["test_loss"] or 0.0, 1.0)
    train = {**info.train_metrics, "loss": info.train_loss}
    known = {name: counted & ~np.isnan(values) for name, values in train.items()}
    known["loss"] = counted  # a loss that is nan is a failure, a metric that is has no value
    return {
        "round": done,
        **{f"train_{name}": _mean(train[name], known[name]) for name in _metrics(test)},
        **{f"test_{name}": test[name] for name in _metrics(test)},
        "participants": int(np.sum(info.participants)),
        "rejected": left_out,
        "rejected_clients": _counts(clients[returned & ~np.asarray(info.counted)]),
        "mean_staleness": _mean(info.staleness, returned),
        "mean_steps": _mean(info.steps, returned),
        "client_updates": updates,
        "samples": previous["samples"] + int(np.sum(info.samples, dtype=np.float64)),
        "bytes_sent": updates * run.sent[0],
        "bytes_received": updates * run.sent[1],
        "virtual_time": None if run.schedule.time is None else float(run.schedule.time[done - 1]),
        "seconds": previous["seconds"] + seconds,
        "compile_seconds": compile_seconds,
        "diverged": bool(diverged),
        "diverged_at": _diverged_at(previous, info) if diverged else None,
    }


def has_failed(rows: Sequence[Row], max_rejected: int | None) -> bool:
    """Whether a run should end: its model is not finite, or too many uploads were rejected.

    Args:
        rows: all of its rows, at least one.
        max_rejected: rejected uploads in all, at most; None: no limit.
    """
    limit = math.inf if max_rejected is None else max_rejected
    return rows[-1]["test_loss"] is None or _rejected(rows) > limit


def _rejected(rows: Sequence[Row]) -> int:
    return sum(row["rejected"] or 0 for row in rows)


def rejection(rows: Sequence[Row]) -> str | None:
    """What to say of the last row, if it is the first in which uploads were rejected."""
    *before, last = rows
    if not last["rejected"] or _rejected(before):
        return None
    clients = [*last["rejected_clients"]]
    more = f" and {len(clients) - 5} more" if len(clients) > 5 else ""
    return (
        f"expected finite uploads, found {last['rejected']} rejected before round {last['round']}, "
        f"of clients {', '.join(clients[:5])}{more}; later ones are only in the rows"
    )


def score_name(row: Mapping[str, Any]) -> str:
    """The name of the task's metric in a row, such as "accuracy"; "loss" where it has no other."""
    names = (n[5:] for n in row if n.startswith("test_") and n != "test_loss")
    return next(names, "loss")


def goodness(name: str, value: Any) -> Any:
    """A score, turned where a lower one is better: those of a metric `..._loss`, `..._error`."""
    return -value if name.endswith(("loss", "error")) else value


def score_text(row: Mapping[str, Any]) -> str:
    """The task's metric in a row, as text."""
    name = score_name(row)
    value = row[f"test_{name}"]
    return f"test {name} " + ("not finite" if value is None else f"{value:.4f}")


def model_bytes(params: Params) -> int:
    """Bytes of all numbers of a pytree, uncompressed."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))


def _metrics(test: Mapping[str, float]) -> list[str]:
    """The metrics' names, the loss first."""
    return ["loss", *sorted(test.keys() - {"loss"})]


def _counts(clients: np.ndarray) -> dict[str, int]:
    return {str(k): int(n) for k, n in zip(*np.unique(clients, return_counts=True), strict=True)}


def _diverged_at(previous: Mapping[str, Any], info: Info) -> int:
    finite, before = np.asarray(info.finite), previous["round"]
    if previous.get("diverged_at") is not None:
        return previous["diverged_at"]
    return before + (len(finite) if finite.all() else int(np.argmin(finite)) + 1)


def _mean(values: Any, where: np.ndarray) -> float | None:
    return float(np.asarray(values, np.float64)[where].mean()) if where.any() else None


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | jax.Array | np.ndarray):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
