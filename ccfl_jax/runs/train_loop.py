"""The training loop, from evaluation to evaluation: of a run, or of trials together."""

import contextlib
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import NamedTuple

import jax
import numpy as np
from tqdm.auto import tqdm

from ccfl_jax.data import FederatedData
from ccfl_jax.engine.state import Info, State
from ccfl_jax.runs import metrics, targets
from ccfl_jax.runs.metrics import Row
from ccfl_jax.runs.targets import Target
from ccfl_jax.schedules.schedule import Schedule

PIECE = 250  # rounds of one call; one program serves up to 256

Part = tuple[list[Schedule], FederatedData]  # some rounds, and their samples


class Times(NamedTuple):
    """When a run is evaluated and saved.

    Attributes:
        rounds: of the run.
        eval_every: rounds between evaluations; there is one at the end too.
        checkpoint_every: rounds between checkpoints; None: where it is evaluated.
    """

    rounds: int
    eval_every: int
    checkpoint_every: int | None = None

    def stops(self, begun: int, end: int) -> list[int]:
        """The rounds after `begun` with an evaluation or a checkpoint, and the end."""
        cadences = {self.eval_every, self.checkpoint_every or self.eval_every}
        met = {t for every in cadences for t in range((begun // every + 1) * every, end, every)}
        return [*sorted(met), end]

    def is_evaluation(self, done: int) -> bool:
        """Whether a run is evaluated after `done` rounds."""
        return done % self.eval_every == 0 or done == self.rounds

    def is_checkpoint(self, done: int) -> bool:
        """Whether a run is saved after `done` rounds."""
        every = self.checkpoint_every or self.eval_every
        return done % every == 0 or done == self.rounds


class Progress(NamedTuple):
    """The progress of trials that train together.

    Attributes:
        states: of a run; or of trials, `[trials, ...]`, all at the same round, perhaps with
            further ones that fill the devices.
        infos: the rounds since the last rows, `[trials, rounds, ...]`; None without any.
        rows: of each trial.
        seconds: of those rounds.
    """

    states: State
    infos: Info | None
    rows: list[list[Row]]
    seconds: float

    @property
    def done(self) -> int:
        """The rounds done."""
        return int(np.asarray(self.states.round).max())


def start(states: State, trials: int) -> Progress:
    """The progress of `trials` trials before round 0."""
    return Progress(states, None, [[] for _ in range(trials)], 0.0)


class Program(NamedTuple):
    """The functions that train trials together; a run is one trial.

    Attributes:
        times: of evaluations.
        schedules: of each trial, or one for all of them.
        sent: bytes that a client sends and receives in a visit.
        parts: `parts(first)`: the schedules from round `first` on with the samples, whole or in
            consecutive parts.
        advance: `advance(states, schedules, data) -> (states, infos [trials, rounds, ...])`.
        evaluate: `evaluate(states) -> (metrics on the test set, further columns)` of each trial.
        max_rejected: a trial ends where more uploads are rejected; None: no limit.
        target: a trial ends where it is reached.
    """

    times: Times
    schedules: list[Schedule]
    sent: tuple[int, int]
    parts: Callable[[int], Iterable[Part]]
    advance: Callable[..., tuple[State, Info]]
    evaluate: Callable[[State], list[tuple[dict[str, float], dict[str, float]]]]
    max_rejected: int | None = None
    target: Target | None = None

    def alive(self, progress: Progress) -> list[bool]:
        """Whether each trial continues: it has neither failed nor reached the target."""
        return [not rows or not self._ended(rows) for rows in progress.rows]

    def is_over(self, progress: Progress) -> bool:
        """Whether training is over: all rounds are done, or all trials have ended."""
        rows = max(progress.rows, key=len)
        if not rows:
            return False
        return rows[-1]["round"] >= self.times.rounds or not any(self.alive(progress))

    def _ended(self, rows: list[Row]) -> bool:
        there = self.target is not None and targets.is_reached(rows[-1], self.target)
        return there or metrics.has_failed(rows, self.max_rejected)


class Store(NamedTuple):
    """Where progress is kept.

    Attributes:
        add: `add(progress, {trial: row}) -> Progress`, with the rows as they are kept.
        save: `save(progress, score)`: a checkpoint, with the score of a model just evaluated.
    """

    add: Callable[[Progress, dict[int, Row]], Progress]
    save: Callable[[Progress, float | None], None]


class Watch(NamedTuple):
    """What the training loop calls between pieces.

    Attributes:
        stop_requested: whether to stop; called as often in all processes.
        is_due: `is_due(done, over)`: whether to save after `done` rounds; `over`: the last ones.
        bar: counts rounds of trials.
        after: `after(progress)`, after every evaluation.
    """

    stop_requested: Callable[[], bool]
    is_due: Callable[[int, bool], bool]
    bar: tqdm
    after: Callable[[Progress], None]


def progress_bar(total: int, initial: int = 0, shown: bool = True) -> tqdm:
    """A progress bar of `total` rounds, shown where stderr is a terminal or a notebook."""
    return tqdm(
        total=total,
        initial=initial,
        unit=" rounds",
        disable=None if shown else True,  # None: silent where stderr is no terminal
        bar_format="{l_bar}{bar}| {n}/{total} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]",
    )


def show(bar: tqdm, progress: Progress, shown: bool = True) -> None:
    """Shows the score of a run that was just evaluated: beside its bar, or as a line on stderr."""
    row = progress.rows[0][-1]
    if not bar.disable:
        bar.set_postfix_str(metrics.score_text(row))
    elif shown:
        loss = "" if row["train_loss"] is None else f", train loss {row['train_loss']:.4g}"
        line = f"round {row['round']} of {bar.total}: {metrics.score_text(row)}{loss}"
        print(f"{line}, {row['seconds']:.1f} s", file=sys.stderr, flush=True)


def train(program: Program, progress: Progress, store: Store, watch: Watch) -> Progress:
    """Trains the remaining rounds; every returned row is kept.

    A trial that has failed (`metrics.has_failed`), or has reached the target, has no further rows;
    the others continue.

    Args:
        program: of the trials.
        progress: of the trials, not over.
        store: where rows and checkpoints are kept.
        watch: stopping, saving and the progress bar.

    Returns:
        The progress after the last round, or where a stop was requested.

    Raises:
        OSError: if the metrics or a checkpoint cannot be written.
    """
    times, kept = program.times, progress.done
    begun = kept
    with contextlib.closing(_pieces(program, begun)) as pieces:
        progress, compile_seconds = _compile(program, progress, pieces)
        if not progress.rows[0]:
            progress = evaluate(program, progress, store, watch, compile_seconds)
            compile_seconds = None
            if watch.is_due(begun, program.is_over(progress)):
                _save(store, progress)
        for stop in times.stops(begun, times.rounds):
            if program.is_over(progress):
                break
            progress = _advance(program, progress, stop, pieces, watch)
            done = progress.done
            if done == stop and times.is_evaluation(done):
                progress = evaluate(program, progress, store, watch, compile_seconds)
                compile_seconds = None
            stopped, over = watch.stop_requested(), program.is_over(progress)
            if done > kept and (watch.is_due(done, over) or (stopped and not over)):
                _save(store, progress)
                kept = done
            if stopped:
                break
    return progress


def _pieces(program: Program, begun: int) -> Generator[Part, None, None]:
    """Pieces of rounds with their data: first no rounds, then up to the next of `stops`."""
    done = begun
    for schedules, data in program.parts(begun):
        if done == begun:
            yield _rounds(schedules, 0, 0), data
        first, end = done, done + schedules[0].num_rounds
        for stop in program.times.stops(done, end):
            for start in range(first, stop, PIECE):
                yield _rounds(schedules, start - done, min(start + PIECE, stop) - done), data
            first = stop
        done = end


def _rounds(schedules: list[Schedule], start: int, stop: int) -> list[Schedule]:
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


def evaluate(
    program: Program,
    progress: Progress,
    store: Store,
    watch: Watch,
    compile_seconds: float | None = None,
) -> Progress:
    """Evaluates, and adds a row of each trial that continues, with its share of the seconds."""
    trials = len(progress.rows)
    compiled = None if compile_seconds is None else compile_seconds / trials
    found, new = program.evaluate(progress.states), {}
    for k in np.flatnonzero(program.alive(progress)).tolist():
        test, further = found[k]
        schedule = program.schedules[k if len(program.schedules) > 1 else 0]
        if progress.infos is None:
            row = metrics.first_row(test, compiled or 0.0, schedule.time is not None)
        else:
            run = metrics.Run(schedule, program.sent, program.max_rejected)
            info = jax.tree.map(lambda a, k=k: a[k], progress.infos)
            seconds = progress.seconds / trials
            row = metrics.next_row(progress.rows[k], run, info, test, seconds, compiled)
        new[k] = row | further
    progress = store.add(progress, new)._replace(infos=None, seconds=0.0)
    watch.after(progress)
    return progress


def _save(store: Store, progress: Progress) -> None:
    """Saves a checkpoint, with a score if the model was just evaluated."""
    last = progress.rows[0][-1]
    name = metrics.score_name(last)
    score = last[f"test_{name}"] if len(progress.rows) == 1 else None
    if last["round"] != progress.done or score is None:
        store.save(progress, None)
    else:
        store.save(progress, metrics.goodness(name, score))
