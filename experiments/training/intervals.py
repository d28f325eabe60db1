"""Intervals: when a run, and a sweep, are evaluated, saved and ended, from their `Config`."""

import time
from typing import Any

import jax
import numpy as np

import ccfl_jax as ccfl
from ccfl_jax.runs import targets
from ccfl_jax.runs.train_loop import Times

from ..config.run_flags import Config
from . import parts

_SECONDS = 60  # between the checkpoints of a sweep, by default


def times(config: Config) -> Times:
    """When a run is evaluated and saved."""
    return Times(config.rounds, config.eval_every, config.checkpoint_every)


def target(config: Config) -> targets.Target | None:
    """The score that ends a run."""
    return None if config.target is None else targets.target(config.target)


def check_target(config: Config, task: ccfl.Task, test: dict[str, Any]) -> None:
    """Raises ValueError for a target that is no metric of the task."""
    if wanted := target(config):
        row = {name: array[:1] for name, array in test.items()}
        found = jax.eval_shape(task.metrics, parts.model(task), row, np.ones(1, bool))
        try:
            targets.check(wanted, found)
        except ValueError as error:
            raise ValueError(f"--{error}") from None


class Minutes:
    """Whether trials of a sweep are saved after `done` rounds; by default once a minute."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def is_checkpoint(self, config: Config, done: int) -> bool:
        """Called after the rounds where a run is evaluated or saved."""
        if config.checkpoint_every is not None:
            return times(config).is_checkpoint(done)
        if time.monotonic() - self._last < _SECONDS:
            return False
        self._last = time.monotonic()
        return True
