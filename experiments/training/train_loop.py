"""The training loop, from evaluation to evaluation: of a run, or of trials together."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import jax
import numpy as np
from tqdm import tqdm

import ccfl_jax as ccfl
from ccfl_jax.runs import metrics

from ..config.run_flags import Config
from . import intervals, journal, privacy
from .journal import Journal, Progress

PIECE = 250  # rounds of one call; one program serves up to 256

Part = tuple[list[ccfl.Schedule], ccfl.FederatedData]  # some rounds, and their samples


class Program(NamedTuple):
    """The functions that train trials together; a run is one trial.

    Attributes:
        configs: of each trial.
        schedules: of each trial, or one for all of them.
        sent: bytes that a client sends and receives in a visit.
        parts: `parts(first)`: the schedules from round `first` on with the samples, whole or in
            consecutive parts.
        advance: `advance(states, schedules, data) -> (states, infos [trials, rounds, ...])`.
        evaluate: `evaluate(states) -> (metrics on the test set, further columns)` of each trial.
    """

    configs: list[Config]
    schedules: list[ccfl.Schedule]
    sent: tuple[int, int]
    parts: Callable[[int], Iterable[Part]]
    advance: Callable[..., tuple[ccfl.State, ccfl.Info]]
    evaluate: Callable[[ccfl.State], list[tuple[dict[str, float], dict[str, float]]]]

    @property
    def config(self) -> Config:
        """One of them: what they have in common."""
        return self.configs[0]


class Watch(NamedTuple):
    """What the training loop calls between pieces.

    Attributes:
        stop_requested: whether to stop; called as often in all processes.
        is_due: `is_due(done, over)`: whether to save after `done` rounds; `over`: the last ones.
        bar: counts rounds of trials.
    """

    stop_requested: Callable[[], bool]
    is_due: Callable[[int, bool], bool]
    bar: tqdm


def progress_bar(config: Config, total: int, initial: int = 0) -> tqdm:
    """A progress bar of `total` rounds, shown where stderr is a terminal."""
    return tqdm(
        total=total,
        initial=initial,
        unit=" rounds",
        # None: silent where stderr is no terminal
        disable=None if config.progress and not config.process_id else True,
        bar_format="{l_bar}{bar}| {n}/{total} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]",
    )


def say(line: str) -> None:
    """Prints a line, above the bar where there is one."""
    with tqdm.external_write_mode():
        print(line, flush=True)


def is_over(config: Config, progress: Progress) -> bool:
    """Whether training is over: all rounds are done, or all trials have failed."""
    rows = max(progress.rows, key=len)
    if not rows:
        return False
    return rows[-1]["round"] >= config.rounds or not any(progress.alive(config.max_rejected))


def train(program: Program, progress: Progress, own: Journal, watch: Watch) -> Progress:
    """Trains the remaining rounds; every returned row is on disk.

    A trial that has failed (`metrics.has_failed`) has no further rows; the others continue.

    Args:
        program: of the trials.
        progress: of the trials, not over.
        own: their folder.
        watch: stopping, saving and the progress bar.

    Returns:
        The progress after the last round, or where a stop was requested.

    Raises:
        OSError: if the metrics or a checkpoint cannot be written.
    """
    config, begun = program.config, progress.done
    kept = begun
    with contextlib.closing(_pieces(program, begun)) as pieces:
        progress, compile_seconds = _compile(program, progress, pieces)
        if not progress.rows[0]:
            progress = _evaluate(program, progress, own, watch, compile_seconds)
            compile_seconds = None
            if watch.is_due(begun, is_over(config, progress)):
                _save(own, progress)
        for stop in intervals.stops(config, begun, config.rounds):
            if is_over(config, progress):
                break
            progress = _advance(program, progress, stop, pieces, watch)
            done = progress.done
            if done == stop and intervals.is_evaluation(config, done):
                progress = _evaluate(program, progress, own, watch, compile_seconds)
                compile_seconds = None
            stopped, over = watch.stop_requested(), is_over(config, progress)
            if done > kept and (watch.is_due(done, over) or (stopped and not over)):
                _save(own, progress)
                kept = done
            if stopped:
                break
    return progress


def _pieces(program: Program, begun: int) -> Iterator[Part]:
    """Pieces of rounds with their data: first no rounds, then up to the next of `stops`."""
    done = begun
    for schedules, data in program.parts(begun):
        if done == begun:
            yield _rounds(schedules, 0, 0), data
        first, end = done, done + schedules[0].num_rounds
        for stop in intervals.stops(program.config, done, end):
            for start in range(first, stop, PIECE):
                yield _rounds(schedules, start - done, min(start + PIECE, stop) - done), data
            first = stop
        done = end


def _rounds(schedules: list[ccfl.Schedule], start: int, stop: int) -> list[ccfl.Schedule]:
    return [one.rounds(start, stop) for one in schedules]


def _compile(
    program: Program, progress: Progress, pieces: Iterator[Part]
) -> tuple[Progress, float]:
    """The progress after compiling, with the program's own states, and the seconds of that."""
    no_rounds, data = next(pieces)
    started = time.perf_counter()
    states, _ = program.advance(progress.states, no_rounds, data)
    jax.block_until_ready(states)
    return progress._replace(states=states), time.perf_counter() - started


def _advance(
    program: Program, progress: Progress, stop: int, pieces: Iterator[Part], watch: Watch
) -> Progress:
    """The progress after `stop` rounds, or fewer if a stop is requested."""
    infos, trials = [] if progress.infos is None else [progress.infos], len(progress.rows)
    states, done, started = progress.states, progress.done, time.perf_counter()
    while done < stop and not watch.stop_requested():
        # A variable would keep the piece in memory while the next one is sent.
        states, info = program.advance(states, *next(pieces))
        infos.append(jax.tree.map(lambda a: a[:trials], info))
        rounds = info.train_loss.shape[1]
        watch.bar.update(rounds * trials)
        done += rounds
    jax.block_until_ready(states)
    seconds = progress.seconds + time.perf_counter() - started
    joined = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *infos) if infos else None
    return progress._replace(states=states, infos=joined, seconds=seconds)


def _evaluate(
    program: Program, progress: Progress, own: Journal, watch: Watch, compile_seconds: float | None
) -> Progress:
    """Evaluates, and adds a row of each trial that continues, with its share of the seconds."""
    config, trials = program.config, len(progress.rows)
    compiled = None if compile_seconds is None else compile_seconds / trials
    found, alive = program.evaluate(progress.states), progress.alive(config.max_rejected)
    new = {}
    for k in np.flatnonzero(alive).tolist():
        test, further = found[k]
        schedule = program.schedules[k if len(program.schedules) > 1 else 0]
        if progress.infos is None:
            row = metrics.first_row(test, compiled or 0.0, schedule.time is not None)
        else:
            run = metrics.Run(schedule, program.sent, config.max_rejected)
            info = jax.tree.map(lambda a, k=k: a[k], progress.infos)
            seconds = progress.seconds / trials
            row = metrics.next_row(progress.rows[k], run, info, test, seconds, compiled)
        given_away = privacy.columns(program.configs[k], schedule.rounds(0, progress.done))
        new[k] = row | further | given_away
    progress = journal.add(own, progress, new)
    if trials == 1:
        watch.bar.set_postfix_str(metrics.score_text(progress.rows[0][-1]))
    return progress._replace(infos=None, seconds=0.0)


def _save(own: Journal, progress: Progress) -> None:
    """Saves a checkpoint, with a score if the model was just evaluated."""
    last = progress.rows[0][-1]
    score = last[f"test_{metrics.score_name(last)}"] if len(progress.rows) == 1 else None
    fresh = last["round"] == progress.done
    journal.save(own, progress, score if fresh and score is not None else None)
