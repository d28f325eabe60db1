"""The record of a sweep: a file for each trial, one table of all, and how a trial is chosen."""

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ccfl_jax import config_file, record
from ccfl_jax.folder import as_json, replace_file
from experiments.flags import Config
from experiments.underway import UNDERWAY

TRIALS, RESULTS, SUMMARY = "trials", "results.csv", "summary.json"
_STATUSES = ("finished", "diverged", "failed")
_LARGEST = 1e100  # of a number that is drawn

# What may change between two starts of a sweep: none of it alters a trial.
_FREE = (
    "checkpoint_every",
    "keep_checkpoints",
    "lanes",
    "devices",
    "progress",
    "resume",
    "overwrite",
    "out_dir",
    "compilation_cache",
)
FILES = (TRIALS, UNDERWAY, RESULTS, SUMMARY)  # what a sweep writes

Record = dict[str, Any]  # name, status, reason, config, rows


def made(name: str, config: Config, rows: list[dict[str, Any]]) -> Record:
    """The record of a trial that was trained."""
    status = "diverged" if rows[-1]["diverged"] else "finished"
    return {"name": name, "status": status, "reason": None, "config": asdict(config), "rows": rows}


def failed(name: str, config: Config, error: Exception) -> Record:
    """The record of a trial that could not be trained."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:500]
    return {
        "name": name,
        "status": "failed",
        "reason": reason,
        "config": asdict(config),
        "rows": [],
    }


def digest(config: Config) -> str:
    """SHA-256 of a trial's settings, but for those that may change between two starts."""
    return config_file.digest(asdict(config), _FREE)


def is_of(one: Record, config: Config) -> bool:
    """Whether a record is that of a trial with these settings; a field it lacks counts as None."""
    wanted = {name: v for name, v in asdict(config).items() if name not in _FREE}
    return all(one["config"].get(name) == value for name, value in wanted.items())


def exists(folder: str | os.PathLike, name: str) -> bool:
    """Whether the trial has a record in `folder`."""
    return _path(folder, name).is_file()


def write(folder: str | os.PathLike, one: Record) -> None:
    """Puts a trial's record on disk, whole or not at all."""
    path = _path(folder, one["name"])
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(one, indent=None, allow_nan=False) + "\n")


def read(folder: str | os.PathLike, trials: Mapping[str, Config]) -> dict[str, Record]:
    """The records of those trials that were done before; a failed one is to be tried again.

    Raises:
        ValueError: for a file that is no record, or that of a trial with other settings.
    """
    found = {}
    for name, config in trials.items():
        path = _path(folder, name)
        if not path.is_file():
            continue
        one = as_json(path.read_bytes(), path)
        if not _is_record(one, name):
            raise ValueError(
                f"{path}: found no record of a trial, legal: one of {name!r} with its status, its "
                "config and its rows"
            )
        config_file.check_same(path, one["config"], asdict(config), _FREE)
        if one["status"] != "failed":
            check_rows(one["rows"], path)
            found[name] = one
    return found


def read_all(folder: str | os.PathLike) -> list[Record]:
    """The records of all trials of a sweep, in the order of their names.

    Raises:
        ValueError: for a file that is no record.
    """
    found = []
    for path in sorted((Path(folder) / TRIALS).glob("*.json")):
        one = as_json(path.read_bytes(), path)
        if not (isinstance(one, dict) and _is_record(one, one.get("name"))):
            raise ValueError(f"{path}: found no record of a trial, legal: what a sweep wrote")
        if one["rows"]:
            check_rows(one["rows"], path)
        found.append(one)
    return found


def _is_record(one: Any, name: str) -> bool:
    return (
        isinstance(one, dict)
        and one.get("name") == name
        and one.get("status") in _STATUSES
        and isinstance(one.get("config"), dict)
        and isinstance(one.get("rows"), list)
    )


def check_rows(rows: Sequence[Any], place: str | os.PathLike, columns: Sequence[str] = ()) -> None:
    """Refuses what cannot be the rows of a run or a trial.

    There is at least one; "round" rises; the training and the test score, the same in all, are
    numbers or None.

    Args:
        rows: what was read.
        place: the file it was read from.
        columns: others that have to be numbers.

    Raises:
        ValueError: naming `place`, the row and what it lacks.
    """
    first = rows[0] if rows else None
    names = [n for n in first if n.startswith("test_")] if isinstance(first, dict) else []
    score = next((name[5:] for name in names if name != "test_loss"), "score")
    before = -1
    for number, row in enumerate(rows or [None]):
        row = row if isinstance(row, dict) else {}
        lacking = [name for name in ("round", *columns) if not _is_number(row.get(name))]
        scores = [f"{part}_{score}" for part in ("train", "test")]
        lacking += [n for n in scores if n not in row or not (row[n] is None or _is_number(row[n]))]
        if not lacking and not (type(row["round"]) is int and row["round"] > before):
            lacking = ["round"]
        if lacking:
            raise ValueError(
                f"{place}: found in row {number} no {lacking[0]!r} as it should be, legal: rows "
                "with a rising round and numbers"
            )
        before = row["round"]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _LARGEST


def write_table(path: str | os.PathLike, records: Sequence[Record]) -> None:
    """Writes every evaluation of every trial as one CSV line, numbers with six digits.

    What is missing stays empty.
    """
    rows = []
    for one in records:
        stage = {"stage": one["stage"]} if "stage" in one else {}
        head = {**stage, "trial": one["name"], "status": one["status"]}
        rows += [{**head, **_six_digits(row)} for row in one["rows"] or [{}]]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    replace_file(Path(path), text.getvalue())


def _six_digits(row: Mapping[str, Any]) -> dict[str, Any]:
    return {n: f"{v:.6g}" if isinstance(v, float) else v for n, v in row.items()}


def settings(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records by setting: those of one differ in nothing but the seed."""
    found: dict[str, list[Record]] = {}
    for one in records:
        name = " ".join(word for word in one["name"].split() if not word.startswith("seed="))
        found.setdefault(name or "all", []).append(one)
    return found


def tail_mean(one: Record, part: str, share: float = 1.0) -> float | None:
    """Mean score over the rows of a fifth of the rounds, the one that ends at `share` of them all.

    None for a trial that did not finish: it never wins.

    Args:
        one: a trial's record.
        part: "train" or "test".
        share: 1 for the last fifth of the rounds, 0.6 for that before 60 % of them.
    """
    if one["status"] != "finished":
        return None
    rounds, column = one["config"]["rounds"], f"{part}_{score(one)}"
    last = share * rounds
    values = [row[column] for row in one["rows"] if last - 0.2 * rounds < row["round"] <= last]
    return None if None in values or not values else sum(values) / len(values)


def best(records: Sequence[Record], part: str = "train") -> str | None:
    """The setting with the highest score in the last fifth of the rounds, mean over its seeds.

    Of equals the first; None where no setting has all its trials finished.
    """
    scored = {}
    for name, members in settings(records).items():
        if (mean := _mean_over_seeds(members, part)) is not None:
            scored[name] = mean
    return max(scored, key=scored.get, default=None)


def choices(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """For each server method the setting chosen by training, and what test would have said.

    Returns:
        server -> `chosen`, a setting; `train` and `test`, its mean scores over the last fifth of
        the rounds; `by_test`, the setting that choosing by test data would have given; `diverged`
        and `failed`, how many trials. None for what no trial gives.
    """
    found: dict[str, list[Record]] = {}
    for one in records:
        found.setdefault(one["config"]["server"], []).append(one)
    return {server: _choice(members) for server, members in found.items()}


def _choice(members: Sequence[Record]) -> dict[str, Any]:
    chosen = best(members, "train")
    trials = settings(members).get(chosen, [])
    means = {part: _mean_over_seeds(trials, part) for part in ("train", "test")}
    counts = {s: sum(one["status"] == s for one in members) for s in ("diverged", "failed")}
    return {"chosen": chosen, **means, "by_test": best(members, "test"), **counts}


def _mean_over_seeds(members: Sequence[Record], part: str) -> float | None:
    means = [tail_mean(one, part) for one in members]
    return None if None in means or not means else sum(means) / len(means)


def score(one: Record) -> str:
    """What the task's metric is called in the rows of a record."""
    return record.score_name(one["rows"][0])


def write_summary(path: str | os.PathLike, summary: Mapping[str, Any]) -> None:
    """Writes `summary` as strict JSON."""
    replace_file(Path(path), json.dumps(summary, indent=2, allow_nan=False) + "\n")


def finals(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """setting -> the scores of its seeds in the last fifth of the rounds, training and test."""
    return {
        name: {part: [tail_mean(one, part) for one in members] for part in ("train", "test")}
        for name, members in settings(records).items()
    }


def by_value(
    records: Sequence[Record], name: str
) -> tuple[dict[str, dict[float, list[float]]], tuple[str, list[float]]]:
    """Test scores in the last fifth of the rounds, against the values of a flag.

    Returns:
        server -> value -> a score a seed, nan where a trial did not finish; and the server that has
        no such flag with its scores.
    """
    points: dict[str, dict[float, list[float]]] = {}
    base: dict[str, list[float]] = {}
    for one in records:
        server, value = one["config"]["server"], one["config"][name]
        found = tail_mean(one, "test")
        found = float("nan") if found is None else found
        if value is None:
            base.setdefault(server, []).append(found)
        else:
            points.setdefault(server, {}).setdefault(value, []).append(found)
    return points, next(iter(base.items()), ("no baseline", []))


def line(one: Record) -> str:
    """A record in a line for a person."""
    if not one["rows"]:
        return f"{one['name']}: {one['status']}, {one['reason']}"
    name, last = score(one), one["rows"][-1]
    value = last[f"test_{name}"]
    value = "not finite" if value is None else f"{value:.4f}"
    return f"{one['name']}: {one['status']}, test {name} {value} after {last['round']} rounds"


def choice_line(choice: Mapping[str, Any]) -> str:
    """A choice in a line for a person."""
    if choice["chosen"] is None:
        return "no trial finished"
    same = choice["by_test"] == choice["chosen"]
    other = "" if same else f"; by test data {choice['by_test']}"
    return f"{choice['chosen']}, train {choice['train']:.4f}, test {choice['test']:.4f}{other}"


def _path(folder: str | os.PathLike, name: str) -> Path:
    file = name.replace(" ", ",") + ".json"
    if Path(file).name != file:
        raise ValueError(f"trial {name!r}: found a path, legal: a name for a file in {TRIALS}")
    return Path(folder) / TRIALS / file
