"""Selection: the setting chosen for each method of a sweep, in each problem that it has.

By the score of the held-out samples, with `--validation`, else by that of training. What makes a
method is chosen (the flags of clients, method and server); data, model, schedule, attack and
privacy are the problem, of which an easier one is no better setting.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ccfl_jax.runs import metrics

from ..config.methods import name_of
from ..config.settings import PROBLEM, SEEDS
from .results import Record

PartName = Literal["train", "test", "validation"]


class Choice(NamedTuple):
    """The choice for a method; None where no trial finished.

    Attributes:
        chosen: the setting with the best score of held-out samples or, without any, of training.
        varied: its varied flags.
        train: its mean training score over the last fifth of the rounds.
        validation: the same of the held-out samples; None without any.
        test: the same of the test set.
        by_test: the setting with the best test score.
        diverged: how many trials of the method diverged.
        failed: how many could not be trained.
        on_edge: its rates that are the smallest or largest of the grid; None: not known.
    """

    chosen: str | None
    varied: dict[str, str]
    train: float | None
    validation: float | None
    test: float | None
    by_test: str | None
    diverged: int
    failed: int
    on_edge: list[str] | None = None


class Mean(NamedTuple):
    """The mean of the scores of several seeds.

    Attributes:
        mean: None where a seed has no score.
        standard_error: of it; None of fewer than two scores.
        of_seeds: the scores.
    """

    mean: float | None
    standard_error: float | None
    of_seeds: list[float | None]

    def __str__(self) -> str:
        known = [value for value in self.of_seeds if value is not None]
        if self.mean is None:
            return f"{len(known)} of {len(self.of_seeds)} finished"
        error = "" if self.standard_error is None else f" ± {self.standard_error:.4f}"
        return f"{self.mean:.4f}{error}"


def mean_and_error(values: Sequence[float | None]) -> Mean:
    """The mean of values, None for a missing one, and its standard error: s / sqrt(n)."""
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return Mean(None, None, [*values])
    error = statistics.stdev(known) / math.sqrt(len(known)) if len(known) > 1 else None
    return Mean(statistics.fmean(known), error, [*values])


def settings(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records by setting; those of one differ in their seeds alone."""
    found: dict[str, list[Record]] = {}
    for one in records:
        found.setdefault(one.setting, []).append(one)
    return found


def tail_mean(one: Record, part: PartName, share: float = 1.0) -> float | None:
    """Mean score over the rows of the fifth of the rounds that ends at `share` of all.

    None for a trial that did not finish, which is never chosen.

    Args:
        one: a trial's record.
        part: training or test data.
        share: 1 for the last fifth of the rounds, 0.6 for that before 60 % of them.
    """
    if one.status != "finished" or not one.rows:
        return None
    # A target may end a trial before its last round.
    rounds, column = one.rows[-1]["round"], f"{part}_{one.score}"
    last = share * rounds
    values = [row[column] for row in one.rows if last - 0.2 * rounds < row["round"] <= last]
    return None if None in values or not values else sum(values) / len(values)


def best(records: Sequence[Record], part: PartName | None = None) -> str | None:
    """The setting with the best score in the last fifth of the rounds, mean over its seeds.

    Of equals the first; None where no setting has all its trials finished. Without `part` the score
    is that of the held-out samples or, where some trial has none, of training.
    """
    part = part or _choosing(records)
    found = {name: goodness(members, part) for name, members in settings(records).items()}
    scored = [name for name in found if found[name] > -math.inf]
    return max(scored, key=lambda name: found[name], default=None)


def goodness(members: Sequence[Record], part: PartName) -> float:
    """The score of a setting, turned where a lower one is better; -inf without one."""
    mean = score(members, part).mean
    return -math.inf if mean is None else metrics.goodness(members[0].score, mean)


def _choosing(records: Sequence[Record]) -> PartName:
    held_out = all(one.config.get("validation") is not None for one in records)
    return "validation" if held_out else "train"


def by_method(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each method; where the problem is varied, of each method in each problem."""
    found: dict[str, list[Record]] = {}
    for one in records:
        found.setdefault(one.contest, []).append(one)
    return found


def choices(records: Sequence[Record]) -> dict[str, Choice]:
    """The choice for each of `by_method`."""
    return {method: _choice(members) for method, members in by_method(records).items()}


def on_edge(chosen: Mapping[str, str], tried: Sequence[Mapping[str, str]]) -> list[str]:
    """The rates, and eps, of a setting that are the smallest or largest tried of its method."""
    edges, kind = [], {n: v for n, v in chosen.items() if n in ("server", "method", *PROBLEM)}
    tried = [one for one in tried if kind.items() <= one.items()]
    for rate in ("server_lr", "local_lr", "eps"):
        values = {float(one[rate]) for one in tried if rate in one}
        if len(values) > 1 and float(chosen[rate]) in (min(values), max(values)):
            edges.append(rate)
    return edges


def _choice(members: Sequence[Record]) -> Choice:
    chosen, part = best(members), _choosing(members)
    trials = [one for one in members if one.setting == chosen]
    varied = trials[0].varied if trials else {}
    return Choice(
        chosen=chosen,
        varied={name: value for name, value in varied.items() if name not in SEEDS},
        train=score(trials, "train").mean,
        validation=score(trials, part).mean if part == "validation" else None,
        test=score(trials, "test").mean,
        by_test=best(members, "test"),
        diverged=sum(one.status == "diverged" for one in members),
        failed=sum(one.status == "failed" for one in members),
    )


def score(members: Sequence[Record], part: PartName) -> Mean:
    """The score of a setting in the last fifth of the rounds, over its seeds."""
    return mean_and_error([tail_mean(one, part) for one in members])


def as_json(choices: Mapping[str, Choice]) -> dict[str, dict[str, Any]]:
    """The choices as JSON for a summary."""
    found = {}
    for server, choice in choices.items():
        own = choice._asdict()
        own.pop("varied")
        if choice.on_edge is None:
            own.pop("on_edge")
        found[server] = own
    return found


def line(choice: Choice) -> str:
    """A choice in one line of text."""
    if choice.chosen is None:
        return "no finished trial has a score to choose it by"
    other = "" if choice.by_test == choice.chosen else f"; by test data {choice.by_test}"
    held = "" if choice.validation is None else f"held-out {choice.validation:.4f}, "
    return f"{choice.chosen}, train {choice.train:.4f}, {held}test {choice.test:.4f}{other}"


def scores(records: Sequence[Record]) -> dict[str, dict[str, dict[str, Any]]]:
    """setting -> "train", "test" and, of held-out samples, "validation" -> `Mean`, as JSON."""
    return {
        name: {
            part: score(members, part)._asdict()
            for part in dict.fromkeys(("train", _choosing(members), "test"))
        }
        for name, members in settings(records).items()
    }


def by_value(
    records: Sequence[Record], name: str
) -> tuple[dict[str, dict[float, list[float]]], tuple[str, list[float]]]:
    """Test scores in the last fifth of the rounds, against the values of a flag.

    Returns:
        server -> value -> a score for each seed, nan where a trial did not finish; and the server
        without that flag with its scores.
    """
    points: dict[str, dict[float, list[float]]] = {}
    base: dict[str, list[float]] = {}
    for one in records:
        server, value = name_of(one.config), one.config[name]
        found = tail_mean(one, "test")
        found = float("nan") if found is None else found
        if value is None:
            base.setdefault(server, []).append(found)
        else:
            points.setdefault(server, {}).setdefault(value, []).append(found)
    return points, next(iter(base.items()), ("no baseline", []))
