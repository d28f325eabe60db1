"""What runs took to a target: columns of tables."""

from collections.abc import Sequence

import numpy as np

from ccfl_jax.runs import targets
from ccfl_jax.runs.metrics import Row

_COLUMNS = {
    "rounds": ("round", 1),
    "updates": ("client_updates", 1),
    "MB sent": ("bytes_sent", 1e6),
    "hours": ("virtual_time", 3600),
    "seconds": ("seconds", 1),
}


def columns(runs: Sequence[Sequence[Row]], target: str | None) -> dict[str, str]:
    """What it took until a row first reached the target, means over runs; none without a target.

    Rounds, client updates, megabytes sent, virtual hours (empty without a clock) and seconds of
    training; where some run did not reach it, how many did.

    Raises:
        ValueError: for a target that is no score of the runs.
    """
    if not target:
        return {}
    wanted = targets.target(target)
    for rows in runs:
        targets.check_row(wanted, rows[-1])
    first = [targets.first(rows, wanted) for rows in runs]
    if None in first:
        count = f"{sum(row is not None for row in first)} of {len(first)}"
        return {f"{name} to {target}": count for name in _COLUMNS}
    found = {}
    for name, (column, unit) in _COLUMNS.items():
        values = [row.get(column) for row in first]
        mean = "" if None in values else f"{np.mean(values) / unit:.4g}"
        found[f"{name} to {target}"] = mean
    return found
