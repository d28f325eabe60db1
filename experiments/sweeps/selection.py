"""Selection: the setting chosen for each method of a sweep.

By the score of the held-out samples, with `--validation`, else by that of training.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ..config.methods import name_of
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


def settings(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records by setting; those of one differ in the seed alone."""
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
    """The setting with the highest score in the last fifth of the rounds, mean over its seeds.

    Of equals the first; None where no setting has all its trials finished. Without `part` the score
    is that of the held-out samples or, where some trial has none, of training.
    """
    part = part or _choosing(records)
    means = {name: _mean_over_seeds(members, part) for name, members in settings(records).items()}
    scored = {name: mean for name, mean in means.items() if mean is not None}
    return max(scored, key=lambda name: scored[name], default=None)


def _choosing(records: Sequence[Record]) -> PartName:
    held_out = all(one.config.get("validation") is not None for one in records)
    return "validation" if held_out else "train"


def by_method(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each method."""
    found: dict[str, list[Record]] = {}
    for one in records:
        found.setdefault(name_of(one.config), []).append(one)
    return found


def choices(records: Sequence[Record]) -> dict[str, Choice]:
    """The choice for each method."""
    return {method: _choice(members) for method, members in by_method(records).items()}


def on_edge(chosen: Mapping[str, str], tried: Sequence[Mapping[str, str]]) -> list[str]:
    """The rates, and eps, of a setting that are the smallest or largest tried of its method."""
    edges, kind = [], {n: v for n, v in chosen.items() if n in ("server", "method")}
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
        varied={name: value for name, value in varied.items() if name != "seed"},
        train=_mean_over_seeds(trials, "train"),
        validation=_mean_over_seeds(trials, part) if part == "validation" else None,
        test=_mean_over_seeds(trials, "test"),
        by_test=best(members, "test"),
        diverged=sum(one.status == "diverged" for one in members),
        failed=sum(one.status == "failed" for one in members),
    )


def _mean_over_seeds(members: Sequence[Record], part: PartName) -> float | None:
    means = [tail_mean(one, part) for one in members]
    return None if None in means or not means else sum(means) / len(means)


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
