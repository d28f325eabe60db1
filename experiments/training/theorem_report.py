"""The theorem's conditions for a run, for its header."""

import numpy as np

import ccfl_jax as ccfl
from ccfl_jax import theory

from ..config.run_flags import Config


def lines(config: Config, schedule: ccfl.Schedule, sizes: np.ndarray) -> list[str]:
    """A line for each condition, as printed in the paper and in its consistent form.

    Args:
        config: with `smoothness` and `gradient_bound`, L and G of the theorem, which are unknown
            for a network: the lines hold if these do.
        schedule: of the whole run.
        sizes: int `[clients]`, samples of each.
    """
    # The conditions do not depend on noise, heterogeneity or the initial loss.
    problem = theory.Problem(config.smoothness, config.gradient_bound, 0.0, 0.0, 1, 0.0)
    names = ("server_lr", "local_lr", "b1", "eps", "initial_accumulator")
    setting = theory.Setting(
        *(float(getattr(config, name)) for name in names),
        config.buffer_size,
        config.num_clients,
        config.rounds,
    )
    steps = schedule.work * config.steps_per_work(sizes)[schedule.client]
    work = theory.read_schedule(schedule, config.num_clients, steps)
    return [
        f"theorem   {condition}"
        for form in ("paper", "consistent")
        for condition in theory.conditions(problem, setting, work, form)
    ]
