"""The flags of a reproduction, besides those of a run."""

from dataclasses import dataclass
from typing import Literal

from . import flag as flags
from .flag import flag, one_of, whole

_GROUP = "Reproduction"


@dataclass(frozen=True)
class Options:
    """The flags of a reproduction besides those of a run, which replace those of its preset."""

    grid: Literal["coarse", "paper", "wide"] = flag(
        one_of("coarse", "paper", "wide"),
        "paper",
        "server rates to try: the paper's nine; every second of them; three more for CC-FedSGD and "
        "CC-FedAvgM",
        _GROUP,
    )
    grid_rounds: int | None = flag(
        whole(1), None, "rounds of the trials of the grid; unset: as of the others", _GROUP
    )
    seeds: int = flag(whole(1, 1000), 3, "runs of each chosen setting", _GROUP)


REPRODUCE = flags.table(Options)
