"""The record of a run, on the host: the rows of its metrics.

A run folder holds `config.json` (`config_file`), `metrics.jsonl` (one strict JSON object a line,
rising in `round`), `schedule.npz`, `checkpoints/` and, once somebody drew them, `curves.png`; while
a process works on it also `lock`. Nothing here runs inside a compiled program. Of several processes
the first one writes.
"""

import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ccfl_jax.checks import one_line
from ccfl_jax.folder import append_line, as_json, replace_file
from ccfl_jax.rounds import Info
from ccfl_jax.schedule import Schedule
from ccfl_jax.types import Params

METRICS, SCHEDULE = "metrics.jsonl", "schedule.npz"

_BLOWN_UP = 1000.0


class Run(NamedTuple):
    """What of a run its rows need, the same for all of them.

    Attributes:
        schedule: from round 0 on.
        model_bytes: those of one model's parameters.
        max_rejected: more uploads left out than that make a run diverged too; None: any number.
    """

    schedule: Schedule
    model_bytes: int
    max_rejected: int | None = None


def append_row(folder: str | os.PathLike, row: Mapping[str, Any]) -> dict[str, Any]:
    """Adds a line to `metrics.jsonl`; returns the row as written, None for what is not finite."""
    row = plain(row)
    if jax.process_index() == 0:
        append_line(Path(folder) / METRICS, json.dumps(row, allow_nan=False))
    return row


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row as strict JSON has it: Python's own numbers, None for what is not finite."""
    return {name: _plain(value) for name, value in row.items()}


def read_rows(folder: str | os.PathLike) -> list[dict[str, Any]]:
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
            raise ValueError(f"{path}: found {one_line(str(row), 80)}, legal: a row with its round")
    return rows


def keep_rows(folder: str | os.PathLike, count: int) -> list[dict[str, Any]]:
    """Cuts `metrics.jsonl` back to its first `count` rows, and returns them.

    Raises:
        ValueError: if there are fewer, or their rounds do not rise.
    """
    path = Path(folder) / METRICS
    rows = read_rows(folder) if path.exists() else []
    if len(rows) < count:
        raise ValueError(
            f"{path}: found {len(rows)} rows, legal: {count}, as the checkpoint has it"
        )
    rounds = [row["round"] for row in rows[:count]]
    if any(later <= earlier for earlier, later in itertools.pairwise(rounds)):
        raise ValueError(f"{path}: found rounds {rounds}, legal: each above the one before")
    text = "".join(json.dumps(row) + "\n" for row in rows[:count])
    if jax.process_index() == 0 and path.exists() and text != path.read_text():
        replace_file(path, text)
    return rows[:count]


def first_row(
    test: Mapping[str, float], finite: bool, compile_seconds: float, has_clock: bool = False
) -> dict[str, Any]:
    """The row of x_0: nothing was trained, so the training columns are None.

    Args:
        test, finite, compile_seconds: as for `next_row`.
        has_clock: whether the schedule has times: `virtual_time` is then 0, otherwise None.
    """
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
    rows: Sequence[Mapping[str, Any]],
    run: Run,
    info: Info,
    test: Mapping[str, float],
    finite: bool,
    seconds: float,
    compile_seconds: float | None,
) -> dict[str, Any]:
    """The row that follows `rows` after the rounds of `info` (stacked `[rounds, ...]`).

    Args:
        rows: those before, from the first on; their sums go on.
        run: what stays the same.
        info: the rounds since the last of them.
        test: "loss" and the task's other metrics, of the model after them.
        finite: whether that model and its loss are finite.
        seconds: how long those rounds took, without compilation and evaluation.
        compile_seconds: for the first row that a process writes, otherwise None.

    Returns:
        `round`, the server updates made: the row describes x_round. Since the previous row:
        `train_loss` and the other metrics, means over rounds of each round's unweighted mean over
        the uploads that counted (rounds without any left out, None without such a round);
        `participants` and `rejected`, sums over rounds; `rejected_clients`, client -> how often;
        `mean_staleness` and `mean_steps`, over all slots that returned. Since round 0:
        `client_updates` (slots that returned, rejected ones too), `samples` (useful: masked work
        not counted) and `seconds`; `bytes_sent`, the clients' uploads: `client_updates` times one
        model's parameters, and `bytes_received`, the downloads of the same slots, as many. What a
        clock dropped fills no slot and is in neither: the clock's log has it. `virtual_time`:
        seconds on the schedule's clock when the last round ended, None without a clock.

        `diverged`: the model is not finite, its test loss is a thousand times that of x_0 (below 1,
        or none, counts as 1; a run may come back from it), or too many uploads were left out;
        `diverged_at`, since which round: the first after which the model was not finite, or that of
        the first row in a series.
    """
    previous = rows[-1]
    counted, left_out = np.asarray(info.participants) > 0, int(np.sum(info.rejected))
    begin, done = previous["round"], previous["round"] + len(counted)
    returned, clients = np.asarray(info.present), np.asarray(run.schedule.client)[begin:done]
    updates = previous["client_updates"] + int(returned.sum())
    lost = has_failed(rows, finite, run.max_rejected, left_out)
    diverged = lost or test["loss"] > _BLOWN_UP * max(rows[0]["test_loss"] or 0.0, 1.0)
    train = {**info.train_metrics, "loss": info.train_loss}
    return {
        "round": done,
        **{f"train_{name}": _mean(train[name], counted) for name in _metrics(test)},
        **{f"test_{name}": test[name] for name in _metrics(test)},
        "participants": int(np.sum(info.participants)),
        "rejected": left_out,
        "rejected_clients": _counts(clients[returned & ~np.asarray(info.counted)]),
        "mean_staleness": _mean(info.staleness, returned),
        "mean_steps": _mean(info.steps, returned),
        "client_updates": updates,
        "samples": previous["samples"] + int(np.sum(info.samples, dtype=np.float64)),
        "bytes_sent": updates * run.model_bytes,
        "bytes_received": updates * run.model_bytes,
        "virtual_time": None if run.schedule.time is None else float(run.schedule.time[done - 1]),
        "seconds": previous["seconds"] + seconds,
        "compile_seconds": compile_seconds,
        "diverged": bool(diverged),
        "diverged_at": _diverged_at(previous, info) if diverged else None,
    }


def has_failed(
    rows: Sequence[Mapping[str, Any]], finite: bool, max_rejected: int | None, more: int = 0
) -> bool:
    """Whether a run with these rows has come to nothing, and should end.

    Args:
        rows: from the first on.
        finite: whether the model and its test loss are finite.
        max_rejected: the uploads that may be left out in all; None: any number.
        more: uploads left out since the last row.
    """
    rejected = more + sum(row["rejected"] or 0 for row in rows)
    return not finite or (max_rejected is not None and rejected > max_rejected)


def score_name(row: Mapping[str, Any]) -> str:
    """What a row calls the task's metric, the one besides the loss: "accuracy" or "recall_at_5"."""
    return next(name[5:] for name in row if name.startswith("test_") and name != "test_loss")


def score_text(row: Mapping[str, Any]) -> str:
    """The task's metric in a row, for a person."""
    name = score_name(row)
    value = row[f"test_{name}"]
    return f"test {name} " + ("not finite" if value is None else f"{value:.4f}")


def model_bytes(params: Params) -> int:
    """Bytes of all numbers of a pytree, uncompressed."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))


def is_finite(params: Params) -> bool:
    """Whether every number of a pytree is finite."""
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(params))


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
