"""The lines of a figure: rows of runs and of sweeps' chosen settings, by label."""

from pathlib import Path

from ccfl_jax.runs import metrics

from ..config.plot_flags import AXES
from ..figures.curves import Rows
from . import results, selection


def of_folder(folder: Path, x: str) -> dict[str, list[Rows]]:
    """label -> the rows of its runs: of a run, or of the chosen setting of each method of a sweep.

    Args:
        folder: of a run or a sweep.
        x: the horizontal axis, one of `AXES`.

    Raises:
        OSError, ValueError: for a folder without such rows.
    """
    return _of_sweep(folder, x) if is_sweep(folder) else _of_run(folder, x)


def is_sweep(folder: Path) -> bool:
    """Whether a folder is that of a sweep."""
    return (folder / results.TRIALS).is_dir()


def _of_run(folder: Path, x: str) -> dict[str, list[Rows]]:
    rows, path = metrics.read_rows(folder), folder / metrics.METRICS
    _check_drawn(rows, path, x)
    return {str(folder): [rows]}


def _of_sweep(folder: Path, x: str) -> dict[str, list[Rows]]:
    """method -> the rows of the seeds of its chosen setting."""
    every, found = results.read_all(folder), {}
    methods = selection.by_method(every)
    for method, choice in selection.choices(every).items():
        members = selection.settings(methods[method]).get(choice.chosen, [])
        for one in members:
            _check_drawn(one.rows, folder / one.name, x)
        if members:
            name = choice.chosen.removeprefix("server=").removeprefix("method=")
            found[name] = [one.rows for one in members]
    if not found:
        raise ValueError(
            f"{folder}: expected at least one method with a finished trial, found none"
        )
    return found


def _check_drawn(rows: Rows, path: Path, x: str) -> None:
    """Raises ValueError for rows that cannot be drawn against `x`."""
    if not rows:
        raise ValueError(f"{path}: expected at least one row, found none")
    there = [
        axis
        for axis, (_, columns) in AXES.items()
        if all(row.get(name) is not None for row in rows for name in columns)
    ]
    if x not in there:
        raise ValueError(f"{path}: expected --x of {', '.join(there)}, found rows without {x}")
    results.check_rows(rows, path, AXES[x][1])
