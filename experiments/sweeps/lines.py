"""The lines of a figure: rows of runs and of sweeps' chosen settings, with labels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ccfl_jax.checks import one_line
from ccfl_jax.io.files import as_json
from ccfl_jax.runs import metrics, run_config

from ..config.compare_flags import FINAL
from ..config.methods import FORMS, METHODS
from ..config.plot_flags import AXES
from ..config.run_flags import RUN
from ..figures.curves import Rows
from . import results, selection

# Settings that tell lines apart: those that change a result. A task is named by the model it sets.
_TOLD = [n for n, one in RUN.items() if one.may_change == "never" and n != "task"]
_TOLD += ["schedule_file"]


class Line(NamedTuple):
    """A line of a figure.

    Attributes:
        folder: it is from there.
        config: settings, without the seed where there are several.
        runs: the rows of each of its seeds.
    """

    folder: Path
    config: dict[str, Any]
    runs: list[Rows]


def of_folder(folder: Path, x: str, columns: Sequence[str] = ()) -> list[Line]:
    """The line of a run, or those of the chosen setting of each method of a sweep.

    Args:
        folder: of a run or a sweep.
        x: the horizontal axis, one of `AXES`.
        columns: of the rows, what is drawn besides the scores.

    Raises:
        OSError, ValueError: for a folder without such rows.
    """
    return _of_sweep(folder, x, columns) if is_sweep(folder) else [_of_run(folder, x, columns)]


def is_sweep(folder: Path) -> bool:
    """Whether a folder is that of a sweep; ValueError where it is that of a run neither."""
    if not _has_results(folder):
        found = "none"
        if folder.is_dir():
            places = sorted([*folder.glob("*/"), *folder.glob(f"*/{FINAL}/")])
            within = [str(place) for place in places if _has_results(place)]
            more = f" and {len(within) - 5} more" if len(within) > 5 else ""
            found = f"one that holds {', '.join(within[:5])}{more}" if within else "another one"
        raise ValueError(f"{folder}: expected the folder of a run or a sweep, found {found}")
    return (folder / results.TRIALS).is_dir()


def _has_results(folder: Path) -> bool:
    parts = run_config.CONFIG, metrics.METRICS, results.TRIALS
    return any((folder / part).exists() for part in parts)


def labels(lines: Sequence[Line], given: Sequence[str] = ()) -> list[str]:
    """A label for each line: `given`, or its settings that differ between the lines.

    Where these are not enough, its folder is in brackets behind them.

    Raises:
        ValueError: for labels of another number, or two that are equal.
    """
    told = differing([one.config for one in lines])
    words = [[f"{name} {shown}".strip() for name, shown in own.items()] for own in told]
    methods = [_settings(one.config).get("") or str(one.folder) for one in lines]
    found = [", ".join(own) or method for own, method in zip(words, methods, strict=True)]
    for label, k in [(label, k) for k, label in enumerate(found) if found.count(label) > 1]:
        found[k] = f"{label} ({lines[k].folder})"
    if given and (len(given) != len(lines) or len({*given}) < len(given)):
        raise ValueError(
            f"--labels: expected {len(lines)} different ones, for {'; '.join(found)}, found "
            f"{','.join(given)}"
        )
    return [*given] or found


def differing(configs: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Of each run the settings that differ between them, as they are shown; as "" its method."""
    every = [_settings(config) for config in configs]
    names = [name for name in ("", *_TOLD) if _differs(name, every)]
    return [{name: _shown(own[name]) for name in names if name in own} for own in every]


def _differs(name: str, every: Sequence[dict[str, Any]]) -> bool:
    """Whether lines differ in a setting, and not as one method lacks what another has."""
    values = {(own.get(""), str(own.get(name))) for own in every}
    of_one_method = len({method for method, _ in values}) < len(values)
    known = {value for _, value in values} - ({"None"} if name not in FORMS else set())
    return of_one_method or len(known) > 1


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """Those that tell lines apart, and as "" the method, without what it sets itself."""
    method = str(config.get("method") or config.get("server") or "")
    implied = {"method": config.get("method"), "server": config.get("server")}
    implied |= METHODS.get(method, {})
    own = {n: v for n, v in config.items() if n in _TOLD and v not in (None, implied.get(n))}
    return {"": method} | own if method else own


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else one_line(str(value), 60)


def _of_run(folder: Path, x: str, columns: Sequence[str]) -> Line:
    rows, path = metrics.read_rows(folder), folder / run_config.CONFIG
    _check_drawn(rows, folder / metrics.METRICS, x, columns)
    config: Any = as_json(path.read_bytes(), path) if path.exists() else {}
    if not isinstance(config, dict):
        found = one_line(str(config), 80)
        raise ValueError(f"{path}: expected the settings of a run, found {found}")
    return Line(folder, config, [rows])


def _of_sweep(folder: Path, x: str, columns: Sequence[str]) -> list[Line]:
    """A line of each method, its chosen setting."""
    every, found = results.read_all(folder), []
    methods = selection.by_method(every)
    for method, choice in selection.choices(every).items():
        members = selection.settings(methods[method]).get(choice.chosen, [])
        for one in members:
            _check_drawn(one.rows, folder / one.name, x, columns)
        if members:
            config = {n: v for n, v in members[0].config.items() if n != "seed" or not members[1:]}
            found.append(Line(folder, config, [one.rows for one in members]))
    if not found:
        raise ValueError(
            f"{folder}: expected at least one method with a finished trial, found none"
        )
    return found


def _check_drawn(rows: Rows, path: Path, x: str, columns: Sequence[str]) -> None:
    """Raises ValueError for rows that cannot be drawn against `x`, or have no such columns."""
    if not rows:
        raise ValueError(f"{path}: expected at least one row, found none")
    there = [
        axis
        for axis, (_, own) in AXES.items()
        if all(row.get(name) is not None for row in rows for name in own)
    ]
    if x not in there:
        raise ValueError(f"{path}: expected --x of {', '.join(there)}, found rows without {x}")
    results.check_rows(rows, path, AXES[x][1])
    for name in columns:
        numbers = [n for n in rows[-1] if all(results.is_missing_or_number(r.get(n)) for r in rows)]
        if name not in numbers:
            raise ValueError(f"{path}: expected --y of {', '.join(numbers)}, found {name}")
