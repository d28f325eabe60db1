"""The table of a comparison: scores of the seeds, and what it took to a target."""

import math
from collections.abc import Sequence

import numpy as np

from ccfl_jax.runs import targets

from ..sweeps import selection
from ..sweeps.results import Record


def table(final: Sequence[Record], target: str | None) -> list[dict[str, str]]:
    """A row for each method, the best first: mean and standard error over its seeds.

    Scores are means over the last fifth of the rounds; with a target, the rounds, client updates,
    bytes sent, virtual hours and seconds of training until a row first reaches it, means over the
    seeds, where all have such a row.
    """
    rows = [_row(name, own, target) for name, own in selection.by_method(final).items()]
    return [row for _, row in sorted(rows, key=lambda pair: -pair[0])]


def _row(method: str, own: list[Record], target: str | None) -> tuple[float, dict[str, str]]:
    varied = {n: v for n, v in own[0].varied.items() if n not in ("method", "seed")}
    row = {"method": method, **{name: "" for name in ("local_lr", "server_lr", "eps")}, **varied}
    test, held = (selection.score(own, part) for part in ("test", "validation"))
    row |= {"test": str(test), "held out": str(held)}
    if target is not None:
        row |= _to_target(own, target)
    return (-math.inf if test.mean is None else test.mean), row


def _to_target(own: list[Record], target: str) -> dict[str, str]:
    """Columns of what it took until the target was reached first."""
    first = [targets.first(one.rows, targets.target(target)) for one in own]
    label, names = f"to {target}", ("rounds", "updates", "MB sent", "hours", "seconds")
    if None in first:
        count = sum(row is not None for row in first)
        return {f"{name} {label}": f"{count} of {len(own)}" for name in names}
    values = [
        [row["round"] for row in first],
        [row["client_updates"] for row in first],
        [row["bytes_sent"] / 1e6 for row in first],
        [None if row["virtual_time"] is None else row["virtual_time"] / 3600 for row in first],
        [row["seconds"] for row in first],
    ]
    shown = ["" if None in value else f"{np.mean(value):.4g}" for value in values]
    return {f"{name} {label}": text for name, text in zip(names, shown, strict=True)}
