"""The flags of a comparison, besides those of a run: methods, worlds, budget."""

from dataclasses import dataclass
from typing import Any

from absl import flags

from . import expression
from . import flag as tables
from .flag import Domain, flag, one_of, whole
from .methods import METHODS
from .sweep_flags import cluster

_GROUP = "Comparison"
_TASKS = ["--world=clock", "--step=log_normal(0,1,60)", "--concurrency=20"]
# World -> the flags of `schedule` that make it: cohorts and random delays, or devices of which some
# are slow, always available, at night, or by the labels that they have.
WORLDS = {
    "paper": ["--world=paper"],
    "devices": _TASKS,
    "nights": [*_TASKS, "--availability=diurnal(22,8)"],
    "labels": [*_TASKS, "--availability=label(86400)"],
}
FINAL = "final"  # in a world's folder, the sweep of the chosen settings with all seeds
# What is tuned, and between which values. Of the server's rates: of adaptive servers, of undivided
# uploads, of divided ones.
_RANGES = (
    "local_lr(least=0.001,most=0.316)",
    "adaptive(least=0.001,most=1)",
    "undivided(least=0.1,most=6.31)",
    "divided(least=1,most=199.5)",
    "eps(least=1e-06,most=0.01)",
)


def _names(known: Any) -> Domain:
    """Some of the names, with a comma between two, none twice."""
    plain = one_of(*known)

    def holds(text: str) -> bool:
        names = text.split(",")
        return set(names) <= set(known) and len(set(names)) == len(names)

    return plain._replace(expected=f"of {plain.expected}, with commas", holds=holds)


def ranges(text: str) -> dict[str, tuple[float, float]]:
    """What is tuned -> its least and largest value, those in `text` in place of the usual ones."""
    words = [*(form.partition("(")[0] for form in _RANGES), *expression.split(text, "+ ")]
    return dict(expression.expression(word, _RANGES) for word in words)


def _are_ranges(text: str) -> bool:
    known = expression.domain(_RANGES, several=True)
    return not text or (
        known.holds(text) and all(0 < low < high for low, high in ranges(text).values())
    )


@dataclass(frozen=True)
class Options:
    """The flags of a comparison besides those of a run, which are common to all its trials."""

    methods: str = flag(
        _names(METHODS),
        "fedavg,fedprox,scaffold,feddyn,fedbuff,fadas,cc_fedsgd,cc_fedams",
        "systems to compare",
        _GROUP,
    )
    worlds: str = flag(
        _names(WORLDS),
        "paper",
        "who comes when; paper: random delays; devices: slow and fast ones on a clock; nights: "
        "they charge at night; labels: they come by their labels",
        _GROUP,
    )
    budget: int = flag(
        whole(1, 1000),
        8,
        "settings tried of each method: points of local_lr, server_lr and, of adaptive servers, "
        "eps, those that the command line does not give",
        _GROUP,
    )
    ranges: str = flag(
        Domain(
            flags.DEFINE_string,
            ", ".join(_RANGES) + " with 0 < least < most; several with + between two",
            _are_ranges,
        ),
        "",
        "between which values rates are tuned, others than the usual ones",
        _GROUP,
    )
    tune_rounds: int | None = flag(
        whole(1), None, "rounds of those trials; unset: as of the others", _GROUP
    )
    seeds: int = flag(whole(1, 1000), 3, "runs of each chosen setting", _GROUP)
    cluster: str | None = cluster(_GROUP)


COMPARE = tables.table(Options)
