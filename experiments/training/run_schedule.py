"""The schedule of a run, from its `Config`: drawn, or read from a file that fits the flags."""

import dataclasses
from collections.abc import Iterable

import numpy as np

import ccfl_jax as ccfl

from ..config.run_flags import Config


def schedule(config: Config) -> tuple[ccfl.Schedule, int]:
    """The schedule of a run, and the length of its history.

    Drawn from the seed, with a ring of max_delay + 1 models; or read from `schedule_file`, planned
    and cut to `config.rounds`.

    Raises:
        ValueError, OSError: for a file that cannot be read, or does not fit the run.
    """
    if config.schedule_file is None:
        return drawn_schedule(config), config.max_delay + 1
    path = config.schedule_file.replace("{seed}", str(config.seed_of("schedule")))
    found = ccfl.Schedule.load(path)
    _check_saved(config, found, path)
    # The plan is of the whole file, so that a run can be resumed with more of its rounds.
    return found.planned().rounds(0, config.rounds), found.history_slots()


def drawn_schedule(config: Config, available: Iterable[np.ndarray] | None = None) -> ccfl.Schedule:
    """The paper's random schedule; `available`: a bool `[clients]` for each round."""
    drawn = ccfl.random_schedule(
        config.seed_of("schedule"),
        config.rounds,
        config.num_clients,
        buffer_size=config.buffer_size,
        max_delay=config.max_delay,
        local_work=config.local_work,
        randomness=config.randomness,
        available=available,
    ).replace(work_unit=config.work_unit)
    if config.work == "fixed":
        drawn = drawn.replace(work=np.full_like(drawn.work, config.local_work))
    return drawn


def _check_saved(config: Config, found: ccfl.Schedule, path: str) -> None:
    """Checks the flags against a schedule file."""
    rounds, unit = found.num_rounds, config.work_unit
    found = found.rounds(0, min(rounds, config.rounds))
    work = f"local_{unit} * randomness"
    exact = {"buffer_size": found.num_slots, "num_clients": found.num_clients}
    least = {
        "num_clients": found.client.max(initial=0) + 1,
        "max_delay": found.staleness.max(initial=0),
        work: found.work.max(initial=0),
    }
    given = dataclasses.asdict(config) | {work: config.most_work}
    if rounds < config.rounds:
        raise ValueError(f"--rounds: expected 1 to {rounds}, as in {path}, found {config.rounds}")
    if found.work_unit not in (None, unit):
        raise ValueError(
            f"--local_{unit}: expected --local_{found.work_unit}, as in {path}, found "
            f"--local_{unit}={config.local_work}"
        )
    for name, value in exact.items():
        if value not in (None, given[name]):
            raise ValueError(f"--{name}: expected {value}, as in {path}, found {given[name]}")
    for name, value in least.items():
        if given[name] is not None and given[name] < value:
            raise ValueError(
                f"--{name}: expected at least {value}, as in {path}, found {given[name]:g}"
            )
