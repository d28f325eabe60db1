"""The training loop, from evaluation to evaluation: of a run, or of trials side by side."""

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
from . import intervals, journal
from .journal import Journal, Progress

PIECE = 250  # rounds handed over at once; one program serves up to 256

Part = tuple[list[ccfl.Schedule], ccfl.FederatedData]  # some rounds, and the samples for them


class Program(NamedTuple):
    """What trials that train together are trained by; a run is one trial.

    Attributes:
        config: the settings that they share.
        schedules: of each trial, or one for all of them.
        model_bytes: of one model.
        parts: `parts(first)`: the schedules from round `first` on with the samples, whole or in
            parts that follow each other.
        advance: `advance(states, schedules, data) -> (states, infos [trials, rounds, ...])`.
        evaluate: `evaluate(states) -> (metrics on the test set, adaptive share)` of each trial.
    """

    config: Config
    schedules: list[ccfl.Schedule]
    model_bytes: int
    parts: Callable[[int], Iterable[Part]]
    advance: Callable[..., tuple[ccfl.State, ccfl.Info]]
    evaluate: Callable[[ccfl.State], list[tuple[dict[str, float], float]]]


class Watch(NamedTuple):
    """What else happens meanwhile.

    Attributes:
        asked: whether to stop; it is asked after every piece, in all processes as often.
        is_due: `is_due(done, over)`, whether to save after `done` rounds; `over`: no more follow.
        bar: that counts rounds of trials.
    """

    asked: Callable[[], bool]
    is_due: Callable[[int, bool], bool]
    bar: tqdm


def progress_bar(config: Config, total: int, initial: int = 0) -> tqdm:
    """A bar of so many rounds, shown where stderr is a terminal."""
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
    """Whether nothing is left to train: all rounds are done, or no trial goes on."""
    rows = max(progress.rows, key=len)
    if not rows:
        return False
    return rows[-1]["round"] >= config.rounds or not any(progress.alive(config.max_rejected))


def train(program: Program, progress: Progress, own: Journal, watch: Watch) -> Progress:
    """Trains what is left; every row is on disk when it is among those returned.

    A trial that has failed (`metrics.has_failed`) has no row after that; the others go on.

    Args:
        program: of the trials.
        progress: where they stand, not over yet.
        own: their folder.
        watch: what else happens.

    Returns:
        Where they stand in the end: after the last round, or where it was asked to stop.

    Raises:
        OSError: if the record cannot be written.
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
            stopped, over = watch.asked(), is_over(config, progress)
            if done > kept and (watch.is_due(done, over) or (stopped and not over)):
                _save(own, progress)
                kept = done
            if stopped:
                break
    return progress


def _pieces(program: Program, begun: int) -> Iterator[Part]:
    """What is run at once, rounds and their data: first no rounds, then none past a stop."""
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
    """The progress, its states as the program gives them, and the seconds of compilation."""
    no_rounds, data = next(pieces)
    started = time.perf_counter()
    states, _ = program.advance(progress.states, no_rounds, data)
    jax.block_until_ready(states)
    return progress._replace(states=states), time.perf_counter() - started


def _advance(
    program: Program, progress: Progress, stop: int, pieces: Iterator[Part], watch: Watch
) -> Progress:
    """The progress after `stop` rounds, or after fewer if asked to stop."""
    infos, trials = [] if progress.infos is None else [progress.infos], len(progress.rows)
    states, done, started = progress.states, progress.done, time.perf_counter()
    while done < stop and not watch.asked():
        # A piece that had a name here would still be in memory while the next one comes.
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
    """Evaluates, and adds a row of each trial that goes on; seconds in it are the trial's share."""
    config, trials = program.config, len(progress.rows)
    compiled = None if compile_seconds is None else compile_seconds / trials
    found, alive = program.evaluate(progress.states), progress.alive(config.max_rejected)
    new = {}
    for k in np.flatnonzero(alive).tolist():
        test, share = found[k]
        schedule = program.schedules[k if len(program.schedules) > 1 else 0]
        if progress.infos is None:
            row = metrics.first_row(test, compiled or 0.0, schedule.time is not None)
        else:
            run = metrics.Run(schedule, program.model_bytes, config.max_rejected)
            info = jax.tree.map(lambda a, k=k: a[k], progress.infos)
            seconds = progress.seconds / trials
            row = metrics.next_row(progress.rows[k], run, info, test, seconds, compiled)
        new[k] = row | {"adaptive_share": share}
    progress = journal.add(own, progress, new)
    if trials == 1:
        watch.bar.set_postfix_str(metrics.score_text(progress.rows[0][-1]))
    return progress._replace(infos=None, seconds=0.0)


def _save(own: Journal, progress: Progress) -> None:
    """Saves; a model that was just evaluated may be the best."""
    last = progress.rows[0][-1]
    score = last[f"test_{metrics.score_name(last)}"] if len(progress.rows) == 1 else None
    fresh = last["round"] == progress.done
    journal.save(own, progress, score if fresh and score is not None else None)
