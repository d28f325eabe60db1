"""What a page shows of runs, sweeps and comparisons: their lines, tables and origins."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ccfl_jax.checks import one_line
from ccfl_jax.io.files import as_json
from ccfl_jax.runs import metrics, provenance, run_config

from ..config.compare_flags import FINAL
from ..config.plot_flags import AXES
from ..config.sweep_file import SWEEP_FILE
from ..figures import curves
from ..sweeps import lines, results, summaries
from ..sweeps.lines import Line

_NOT_DRAWN = ("round", "compile_seconds", "diverged", "diverged_at")


class Group(NamedTuple):
    """What has one legend: all runs, or a sweep.

    Attributes:
        name: its heading.
        folders: of the runs, or of the sweep.
        lines: its curves, those of `ccfl plot`.
        labels: of the lines.
        rows: its table, that of `ccfl table`.
    """

    name: str
    folders: list[Path]
    lines: list[Line]
    labels: list[str]
    rows: list[dict[str, Any]]


def folders(given: Sequence[str]) -> dict[Path, str]:
    """Each folder of a run or a sweep, and its heading; that of a comparison stands for its worlds.

    These are the sweeps of the final runs.
    """
    found = {}
    for folder in map(Path, given):
        worlds = sorted(path.parent for path in folder.glob(f"*/{FINAL}/{results.TRIALS}"))
        found |= {path: f"{folder}, {path.parent.name}" for path in worlds} or {folder: f"{folder}"}
    return found


def groups(found: Mapping[Path, str]) -> list[Group]:
    """The groups of some `folders`: first all runs, then each sweep.

    Raises:
        OSError, ValueError: for a folder without a run of at least one round, and without a sweep.
    """
    runs = [folder for folder in found if not lines.is_sweep(folder)]
    parts = [(", ".join(found[one] for one in runs), runs)] if runs else []
    parts += [(name, [one]) for one, name in found.items() if one not in runs]
    made = []
    for name, own in parts:
        rows = summaries.of_folders(own)
        drawn = [line for folder in own for line in lines.of_folder(folder, "round")]
        made.append(Group(name, own, drawn, lines.labels(drawn), rows))
    return made


def curves_of(every: Sequence[Group]) -> dict[str, Any]:
    """The curves as JSON: axes that some line has, columns of the rows, and lines.

    Of a line each axis is `[rows]`, each column the mean over its seeds and, of several, their
    smallest and largest value; None is no number.
    """
    drawn = [
        _line(group, label, line)
        for group in every
        for label, line in zip(group.labels, group.lines, strict=True)
    ]
    axes = {name: label for name, (label, _) in AXES.items() if any(name in d["x"] for d in drawn)}
    columns = dict.fromkeys(name for one in drawn for name in one["y"])
    return {
        "axes": axes,
        "columns": {name: name.replace("_", " ", 1) for name in columns},
        "lines": drawn,
    }


def _line(group: Group, label: str, line: Line) -> dict[str, Any]:
    across = {
        name: curves.series([(rows, "round") for rows in line.runs], columns)[0]
        for name, (_, columns) in AXES.items()
        if all(results.is_number(row.get(c)) for rows in line.runs for row in rows for c in columns)
    }
    failed = [rows[-1]["diverged_at"] for rows in line.runs if rows[-1].get("diverged_at")]
    return {
        "label": label,
        "group": group.name,
        "seeds": len(line.runs),
        "diverged": min(failed, default=None),
        "x": {name: numbers(values) for name, values in across.items()},
        "y": {name: _column(line, name) for name in _columns(line)},
    }


def _columns(line: Line) -> list[str]:
    """The columns of numbers, the scores first: what is compared, of the test set, is the first."""
    last = line.runs[0][-1]
    score = metrics.score_name(last)
    first = [f"{part}_{name}" for name in (score, "loss") for part in ("test", "train")]
    names = [name for name in dict.fromkeys((*first, *last)) if name not in _NOT_DRAWN]
    values = {name: [row.get(name) for rows in line.runs for row in rows] for name in names}
    return [
        name
        for name, own in values.items()
        if all(map(results.is_missing_or_number, own)) and own.count(None) < len(own)
    ]


def _column(line: Line, name: str) -> list[list[float | None]]:
    _, values = curves.series([(rows, name) for rows in line.runs], ("round",))
    several = [values.min(axis=0), values.max(axis=0)] if len(values) > 1 else []
    return [numbers(own) for own in (values.mean(axis=0), *several)]


def numbers(values: np.ndarray) -> list[float | None]:
    """Numbers with seven digits, as float32 has them; None for those that are not finite."""
    return [float(f"{value:.7g}") if np.isfinite(value) else None for value in values.tolist()]


def origins(found: Mapping[Path, str]) -> dict[str, dict[str, Any]]:
    """Heading -> the environment and the provenance of each folder, name -> value.

    Raises:
        ValueError: for a file that holds none.
    """
    return {name: {**_environment(folder), **provenance.read(folder)}
            for folder, name in found.items()}  # fmt: skip


def _environment(folder: Path) -> dict[str, Any]:
    """The environment of a run, a sweep or, of one of its worlds, a comparison; empty without."""
    places = [folder / run_config.CONFIG, folder / SWEEP_FILE, folder / results.SUMMARY]
    places += [folder / "../.." / results.SUMMARY] * (folder.name == FINAL)
    for path in places:
        found: Any = as_json(path.read_bytes(), path) if path.is_file() else {}
        own = found.get("environment") if isinstance(found, dict) else None
        if own is not None and not isinstance(own, dict):
            raise ValueError(f"{path}: expected an environment, found {one_line(str(own), 80)}")
        if own:
            return own
    return {}
