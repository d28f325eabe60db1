"""The flags of a reproduction, besides those of a run."""

from dataclasses import dataclass
from typing import Literal

from . import flag as flags
from .flag import flag, one_of, whole
from .sweep_flags import cluster

_GROUP = "Reproduction"


@dataclass(frozen=True)
class Options:
    """The flags of a reproduction besides those of a run, which replace those of its preset."""

    grid: Literal["coarse", "paper", "wide", "joint"] = flag(
        one_of("coarse", "paper", "wide", "joint"),
        "paper",
        "server rates to try; paper: its nine; coarse: every second of them; wide: three more for "
        "CC-FedSGD and CC-FedAvgM; joint: the coarse ones, each with eps 1e-5, 1e-4 and 1e-3, for "
        "methods with eps, the paper's for the others",
        _GROUP,
    )
    grid_rounds: int | None = flag(
        whole(1), None, "rounds of the trials of the grid; unset: as of the others", _GROUP
    )
    seeds: int = flag(whole(1, 1000), 3, "runs of each chosen setting", _GROUP)
    cluster: str | None = cluster(_GROUP)


REPRODUCE = flags.table(Options)
