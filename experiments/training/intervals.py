"""Intervals: the rounds after which a run is evaluated and saved."""

import time

from ..config.run_flags import Config

_SECONDS = 60  # between the checkpoints of a sweep, by default


def stops(config: Config, begun: int, end: int) -> list[int]:
    """The rounds after `begun` with an evaluation or a checkpoint, and the end."""
    cadences = {config.eval_every, config.checkpoint_every or config.eval_every}
    met = {t for every in cadences for t in range((begun // every + 1) * every, end, every)}
    return [*sorted(met), end]


def is_evaluation(config: Config, done: int) -> bool:
    """Whether a run is evaluated after `done` rounds."""
    return done % config.eval_every == 0 or done == config.rounds


def is_checkpoint(config: Config, done: int) -> bool:
    """Whether a run is saved after `done` rounds; by default where it is evaluated."""
    if config.checkpoint_every is None:
        return is_evaluation(config, done)
    return done % config.checkpoint_every == 0 or done == config.rounds


class Minutes:
    """Whether trials of a sweep are saved after `done` rounds; by default once a minute."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def is_checkpoint(self, config: Config, done: int) -> bool:
        """Called after the rounds where a run is evaluated or saved."""
        if config.checkpoint_every is not None:
            return is_checkpoint(config, done)
        if time.monotonic() - self._last < _SECONDS:
            return False
        self._last = time.monotonic()
        return True
