"""Summaries: a row for a finished run and for every setting of a sweep."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ccfl_jax.io.files import as_json
from ccfl_jax.runs import metrics, run_config
from ccfl_jax.runs.metrics import Row

from ..config.methods import name_of
from ..config.settings import SEEDS
from . import lines, reached, results, selection
from .results import Record

_OWN = ("", "server_lr")  # the method and its rate have columns of their own


def of_folders(folders: Sequence[str | Path], target: str | None = None) -> list[dict[str, Any]]:
    """The rows of `of_folder`, with a column for each setting in which they differ."""
    every = [one for folder in folders for one in of_folder(folder, target)]
    told = lines.differing([config for config, _, _ in every])
    shown = [own | varied for own, (_, varied, _) in zip(told, every, strict=True)]
    names = [name for name in dict.fromkeys(n for own in shown for n in own) if name not in _OWN]
    first = ("method", "server_lr")
    return [
        {n: row[n] for n in first} | {n: own.get(n, "") for n in names} | row
        for own, (_, _, row) in zip(shown, every, strict=True)
    ]


def of_folder(
    folder: str | Path, target: str | None = None
) -> list[tuple[dict[str, Any], dict[str, str], dict[str, Any]]]:
    """Settings, those that a sweep varies, and method, rate, last test score and speed: of a run,
    or of each setting of a sweep.

    The score of a setting is the mean over its seeds ± its standard error; speed is without
    compilation, for a trial by its share of the time. With a target, by default that of the run,
    what it took to it.

    Raises:
        OSError, ValueError: if `folder` holds no run with at least one round, and no sweep.
    """
    if not lines.is_sweep(Path(folder)):
        return [_of_run(Path(folder), target)]
    every = results.read_all(folder)
    if not every:
        raise ValueError(f"{folder}: expected at least one finished trial, found none")
    return [_of_setting(members, target) for members in selection.settings(every).values()]


def _of_run(folder: Path, target: str | None) -> tuple[dict, dict, dict[str, Any]]:
    path = folder / run_config.CONFIG
    config: Any = as_json(path.read_bytes(), path)
    try:
        where = config["environment"]
        own = {"method": f"{name_of(config):s}", "server_lr": f"{config['server_lr']:g}"}
        target = f"{target or config.get('target') or '':s}"
        device = f"{where['devices']:d} x {where['device']:s}"
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{path}: expected server, server_lr and environment with devices and device, found no "
            f"settings of a run ({error!r})"
        ) from None
    rows, file = metrics.read_rows(folder), folder / metrics.METRICS
    results.check_rows(rows, file, ("seconds", "samples"))
    last = rows[-1]
    if not (last["round"] and last["seconds"] > 0):
        raise ValueError(
            f"{file}: expected rounds and seconds > 0 in the last row, found {last['round']} and "
            f"{last['seconds']}"
        )
    reach = reached.columns([rows], target)
    return config, {}, {**own, **_result([rows]), **reach, "device": device}


def _of_setting(members: Sequence[Record], target: str | None) -> tuple[dict, dict, dict]:
    config = members[0].config
    own = {"method": name_of(config), "server_lr": f"{config['server_lr']:g}"}
    settings = {name: value for name, value in config.items() if name not in SEEDS}
    named = ("server", "method", *SEEDS)
    varied = {name: value for name, value in members[0].varied.items() if name not in named}
    runs = [one.rows for one in members]
    if not all(runs):
        return settings, varied, {**own, "test score": "failed"}
    reach = reached.columns(runs, target or config.get("target"))
    return settings, varied, {**own, "seeds": str(len(runs)), **_result(runs), **reach}


def _result(runs: Sequence[Sequence[Row]]) -> dict[str, str]:
    """The common columns, from the last row of each run, and its best one by the test score."""
    rows = [run[-1] for run in runs]
    last, name = rows[-1], metrics.score_name(runs[-1][0])  # which `results.check_rows` looks for
    values = [row[f"test_{name}"] for row in rows]
    known = [[v for row in run if (v := row[f"test_{name}"]) is not None] for run in runs]
    best = [max(own, key=partial(metrics.goodness, name), default=None) for own in known]
    if None in values or any(row.get("diverged") for row in rows):
        score = "diverged"
    else:
        score = str(selection.mean_and_error(values))
    seconds = sum(row["seconds"] for row in rows) or float("nan")
    return {
        "rounds": str(last["round"]),
        "test score": score,
        "best test score": str(selection.mean_and_error(best)) if None not in best else "",
        "rounds/s": f"{sum(row['round'] for row in rows) / seconds:.2f}",
        "useful samples/s": f"{sum(row['samples'] for row in rows) / seconds:.0f}",
    }
