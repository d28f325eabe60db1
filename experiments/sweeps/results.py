"""The results of a sweep: a file for each trial, and one table of all."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from ccfl_jax.checks import one_line
from ccfl_jax.io.files import as_json, replace_file
from ccfl_jax.runs import callbacks, metrics, run_config
from ccfl_jax.runs.metrics import Row
from ccfl_jax.runs.provenance import PROVENANCE

from ..config import methods
from ..config.run_flags import RUN, Config
from ..config.settings import PROBLEM, SEEDS, free
from ..config.sweep_file import SWEEP_FILE
from ..config.sweep_flags import Trial, Trials, file_of, name_of
from . import tables
from .trial_checkpoints import UNDERWAY

TRIALS, RESULTS, SUMMARY = "trials", "results.csv", "summary.json"
# What a sweep writes.
FILES = (TRIALS, UNDERWAY, RESULTS, SUMMARY, PROVENANCE, SWEEP_FILE, callbacks.EVENTS)
_LARGEST = 1e100  # of numbers that are drawn

Status = Literal["finished", "diverged", "failed"]


class Record(NamedTuple):
    """The record of a trial.

    Attributes:
        name: of the trial.
        varied: flag -> value as written, for the flags that differ between trials.
        status: whether it was trained to its end, diverged, or could not be trained.
        reason: why it failed.
        config: its settings.
        rows: as those of a run's `metrics.jsonl`.
    """

    name: str
    varied: dict[str, str]
    status: Status
    reason: str | None
    config: dict[str, Any]
    rows: list[Row]

    @property
    def setting(self) -> str:
        """The name of its setting: its varied flags without the seeds."""
        return name_of({n: v for n, v in self.varied.items() if n not in SEEDS}) or "all"

    @property
    def contest(self) -> str:
        """What its setting is chosen for: its method and, if that is varied, the problem."""
        problem = name_of({n: v for n, v in self.varied.items() if n in PROBLEM})
        return f"{methods.name_of(self.config)} {problem}".strip()

    @property
    def score(self) -> str:
        """The name of the task's metric."""
        return metrics.score_name(self.rows[0])


def made(trial: Trial, rows: list[Row]) -> Record:
    """The record of a trial that was trained."""
    status = "diverged" if rows[-1]["diverged"] else "finished"
    return _record(trial, status, None, rows)


def failed(trial: Trial, error: Exception) -> Record:
    """The record of a trial that could not be trained."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:500]
    return _record(trial, "failed", reason, [])


def _record(trial: Trial, status: Status, reason: str | None, rows: list[Row]) -> Record:
    return Record(name_of(trial.varied), trial.varied, status, reason, asdict(trial.config), rows)


def digest(config: Config) -> str:
    """SHA-256 of a trial's settings, without those that may differ at resuming."""
    return run_config.digest(asdict(config), free(a_run=False))


def is_of(one: Record, config: Config) -> bool:
    """Whether a record has the settings of `config`; missing fields count as None."""
    wanted = {name: v for name, v in asdict(config).items() if name not in free(a_run=False)}
    return all(one.config.get(name) == value for name, value in wanted.items())


def exists(folder: str | os.PathLike, name: str) -> bool:
    """Whether the trial has a record in `folder`."""
    return _path(folder, name).is_file()


def write(folder: str | os.PathLike, one: Record) -> None:
    """Writes a trial's record, whole or not at all."""
    path = _path(folder, one.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(one._asdict(), allow_nan=False) + "\n")


def write_events(folder: str | os.PathLike, one: Record) -> None:
    """Writes a trial's rows as a TensorBoard event file, in a folder of its own."""
    if one.rows:
        callbacks.TensorBoard(Path(folder) / callbacks.EVENTS / file_of(one.name))(one.rows)


def read(folder: str | os.PathLike, trials: Trials) -> dict[str, Record]:
    """The records of the trials that are done; failed ones are to be trained again.

    Raises:
        ValueError: for a file that is no record, or that of a trial with other settings.
    """
    found = {}
    for name, trial in trials.items():
        path = _path(folder, name)
        if path.is_file():
            one = _read(path)
            if one.name != name:
                raise ValueError(
                    f"{path}: expected the record of {name!r}, found that of {one.name!r}"
                )
            run_config.check_same(path, one.config, asdict(trial.config), free(a_run=False))
            if one.status != "failed":
                found[name] = one
    _check_of_one_sweep(folder, trials)
    return found


def _check_of_one_sweep(folder: str | os.PathLike, trials: Trials) -> None:
    """Raises ValueError for another trial in the folder that differs in more than what is varied.

    With what is varied may differ what follows from it: the parts of a method, work that is fixed,
    and flags that one of both does not use.
    """
    first = next(iter(trials.values()))
    common = asdict(first.config)
    for one, path in ((_read(path), path) for path in _files(folder)):
        others = {*first.varied, *one.varied}
        others |= {*methods.PARTS} if others & {"method", "server"} else set()
        others |= {"randomness"} if "work" in others else set()
        unused = {
            name
            for name, flag in RUN.items()
            if flag.default is not None and None in (common[name], one.config.get(name))
        }
        if one.name not in trials:
            run_config.check_same(path, one.config, common, others | unused | free(a_run=False))


def read_all(folder: str | os.PathLike) -> list[Record]:
    """The records of all trials of a sweep, in the order of their names.

    Raises:
        ValueError: for a file that is no record.
    """
    return [_read(path) for path in _files(folder)]


def _files(folder: str | os.PathLike) -> list[Path]:
    return sorted((Path(folder) / TRIALS).glob("*.json"))


def _read(path: Path) -> Record:
    found = as_json(path.read_bytes(), path)
    kinds = {"name": str, "config": dict, "rows": list}
    if not (
        isinstance(found, dict)
        and all(isinstance(found.get(name), kind) for name, kind in kinds.items())
        and found.get("status") in get_args(Status)
        and _are_texts(found.get("varied", {}))
    ):
        raise ValueError(
            f"{path}: expected a trial's name, status, config and rows, found "
            f"{one_line(str(found), 80)}"
        )
    if found["rows"] or found["status"] != "failed":
        check_rows(found["rows"], path)
    # Records of the first versions have the varied flags in their names alone.
    words = (word.partition("=") for word in found["name"].split())
    varied = found.get("varied", {name: value for name, _, value in words})
    return Record(
        found["name"], varied, found["status"], found.get("reason"), found["config"], found["rows"]
    )


def _are_texts(varied: Any) -> bool:
    return isinstance(varied, dict) and all(isinstance(value, str) for value in varied.values())


def check_rows(rows: Sequence[Any], place: str | os.PathLike, columns: Sequence[str] = ()) -> None:
    """Checks the rows of a run or a trial that were read from a file.

    There is at least one; "round" rises; the training and the test score, the same in all, are
    numbers or None.

    Args:
        rows: from the file.
        place: the file.
        columns: further columns that have to be numbers.

    Raises:
        ValueError: with `place`, the row and the column.
    """
    first = rows[0] if rows else None
    score, before = metrics.score_name(first if isinstance(first, dict) else {}), -1
    for number, row in enumerate(rows or [None]):
        row = row if isinstance(row, dict) else {}
        lacking = [name for name in ("round", *columns) if not is_number(row.get(name))]
        scores = [f"{part}_{score}" for part in ("train", "test")]
        lacking += [n for n in scores if n not in row or not is_missing_or_number(row[n])]
        if not lacking and not (type(row["round"]) is int and row["round"] > before):
            lacking = ["round"]
        if lacking:
            raise ValueError(
                f"{place}: expected rows with a rising round and numbers, found row {number} with "
                f"{lacking[0]} {row.get(lacking[0])!r:.80}"
            )
        before = row["round"]


def is_missing_or_number(value: Any) -> bool:
    """Whether a value of a row can be drawn."""
    return value is None or is_number(value)


def is_number(value: Any) -> bool:
    """Whether a value of a row is a number that can be drawn."""
    return type(value) in (int, float) and abs(value) < _LARGEST


def carry_over(tried: Sequence[Record], trials: Trials, folder: Path) -> None:
    """Copies the records with the same settings as trials of `folder`, but other names."""
    for name, trial in trials.items():
        known = [one for one in tried if one.status != "failed" and is_of(one, trial.config)]
        if known and not exists(folder, name):
            write(folder, known[0]._replace(name=name, varied=trial.varied))


def write_table(
    path: str | os.PathLike, records: Sequence[Record], stages: Sequence[str] = ()
) -> None:
    """Writes every evaluation of every trial as one CSV line, numbers with six digits.

    A column for each flag that varies; missing values are empty. `stages`: a word for each record,
    for a first column.
    """
    rows, varied = [], dict.fromkeys(name for one in records for name in one.varied)
    for k, one in enumerate(records):
        stage = {"stage": stages[k]} if stages else {}
        head = {**stage, "trial": one.name, "status": one.status, **varied, **one.varied}
        rows += [{**head, **row} for row in one.rows or [{}]]
    replace_file(Path(path), tables.as_csv(rows))


def write_summary(path: str | os.PathLike, summary: Mapping[str, Any]) -> None:
    """Writes `summary`, or what else is told of a sweep, as strict JSON."""
    replace_file(Path(path), json.dumps(summary, indent=2, allow_nan=False) + "\n")


def line(one: Record) -> str:
    """A record in one line of text."""
    if not one.rows:
        return f"{one.name}: {one.status}, {one.reason}"
    last = one.rows[-1]
    return f"{one.name}: {one.status}, {metrics.score_text(last)} after {last['round']} rounds"


def _path(folder: str | os.PathLike, name: str) -> Path:
    return Path(folder) / TRIALS / f"{file_of(name)}.json"
