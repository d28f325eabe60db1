"""The trials of a comparison: the same arrivals and the same budget for each method."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import qmc

from ..config import compare_flags as known
from ..config.compare_flags import Options
from ..config.methods import METHODS, SERVERS
from ..config.run_flags import parse
from ..config.sweep_flags import Trial, Trials, name_of


class Plan(NamedTuple):
    """A comparison.

    Attributes:
        flags: `--NAME=VALUE`, common to all trials.
        fixed: the names of flags that are not tuned, as they are among them.
        options: methods, worlds, budget.
        target: a score, for columns of what it took.
        folder: of the comparison.
    """

    flags: list[str]
    fixed: set[str]
    options: Options
    target: str | None
    folder: Path


def schedule_file(plan: Plan, world: str) -> Path:
    """The schedule of a world, with {seed} for the seed."""
    return plan.folder / "worlds" / f"{world}-{{seed}}.npz"


def tuning(plan: Plan, world: str) -> Trials:
    """The trials by which settings are chosen, all with seed 0."""
    rounds = plan.options.tune_rounds
    own = [] if rounds is None else [f"--rounds={rounds}"]
    trials, ranges = {}, known.ranges(plan.options.ranges)
    for method in plan.options.methods.split(","):
        for setting in settings(method, plan.options.budget, ranges, plan.fixed):
            trials |= trial(plan, world, {"method": method, **setting}, own)
    return trials


def final(plan: Plan, world: str, chosen: Sequence[dict[str, str]]) -> Trials:
    """Each chosen setting with every seed."""
    trials = {}
    for setting in chosen:
        for seed in range(plan.options.seeds):
            trials |= trial(plan, world, {**setting, "seed": str(seed)}, [])
    return trials


def trial(plan: Plan, world: str, setting: dict[str, str], more: list[str]) -> Trials:
    """name -> the trial of a setting."""
    words = [f"--{name}={value}" for name, value in setting.items()]
    own = [word for word in plan.flags if not word.startswith("--max_delay=")]  # the file's
    place = f"--schedule_file={schedule_file(plan, world)}"
    config = parse(["compare", *own, *more, place, *words])
    return {name_of(setting): Trial(setting, replace(config, out_dir=None))}


def settings(
    method: str, budget: int, ranges: Mapping[str, tuple[float, float]], fixed: set[str]
) -> list[dict[str, str]]:
    """As many points of the rates as the budget: of a Halton sequence, the same for all methods.

    They are even in the logarithm of each rate, over ranges that go with the unit of the server's:
    that of an adaptive step, of a whole upload, or of one divided by its work.
    """
    own, server = METHODS[method], METHODS[method]["server"]
    is_adaptive = "eps" in SERVERS[server]
    found = {}
    if "adam" not in own.get("local", ""):
        found["local_lr"] = ranges["local_lr"]
    if server != "cc_fedavg":
        plain = "undivided" if own.get("normalise") == "none" else "divided"
        found["server_lr"] = ranges["adaptive" if is_adaptive else plain]
    if is_adaptive:
        found["eps"] = ranges["eps"]
    tuned = {name: np.log10(one) for name, one in found.items() if name not in fixed}
    points = qmc.Halton(3, seed=0).random(budget)
    rows = [
        tuple(
            (name, f"{10 ** (low + u * (high - low)):.2g}")
            for (name, (low, high)), u in zip(tuned.items(), row[: len(tuned)], strict=True)
        )
        for row in points.tolist()
    ]
    return [dict(pairs) for pairs in dict.fromkeys(rows)]
