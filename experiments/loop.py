"""The training of a run, from evaluation to evaluation, with its rows and its checkpoints."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

import ccfl_jax as ccfl
from ccfl_jax import checkpoints as saving
from ccfl_jax import record
from experiments import build, cadence, devices
from experiments.flags import Config
from experiments.job import Job, about

Rows = list[dict[str, Any]]


class _Since(NamedTuple):
    """The rounds since the last row: what they brought, and the seconds that they took."""

    infos: ccfl.Info | None = None
    seconds: float = 0.0


def go_on(job: Job, rows: Rows, asked: Callable[[], bool]) -> None:
    """Trains what is left; each row that it adds to `rows` is on disk by then.

    Args:
        job: not over yet.
        rows: those of the record up to where `job` stands.
        asked: whether to stop; it is asked after every piece, in all processes as often.

    Raises:
        OSError: if the record cannot be written.
    """
    config, begun = job.config, int(job.state.round)
    since, lost, kept = _Since(job.infos, job.seconds), False, begun
    with contextlib.closing(_pieces(job, begun)) as pieces, _progress_bar(config, begun) as bar:
        state, compile_seconds = _compile(job, pieces)
        if not rows:
            lost = _add_row(job, state, rows, since, compile_seconds)
            compile_seconds = None
            _save(job, state, rows, since)
        for stop in cadence.stops(config, begun, config.rounds):
            if lost:
                break
            state, since = _advance(job, state, stop, since, pieces, bar, asked)
            done = int(state.round)
            if evaluated := done == stop and cadence.is_evaluation(config, done):
                lost = _add_row(job, state, rows, since, compile_seconds)
                since, compile_seconds = _Since(), None
                bar.set_postfix_str(record.score_text(rows[-1]))
            stopped = asked()
            due = done == stop and cadence.is_checkpoint(config, done)
            if (lost or stopped or due) and done > kept:
                _save(job, state, rows, since, best=evaluated)
                kept = done
            if stopped:
                break


def _add_row(
    job: Job, state: ccfl.State, rows: Rows, since: _Since, compile_seconds: float | None
) -> bool:
    """Evaluates, and adds a row to the record; whether the run has come to nothing."""
    config = job.config
    test = ccfl.evaluate(job.task, state.params, job.test)
    finite = math.isfinite(test["loss"]) and record.is_finite(state.params)
    if since.infos is None:
        row = record.first_row(test, finite, compile_seconds, job.schedule.time is not None)
    else:
        run = record.Run(job.schedule, record.model_bytes(state.params), config.max_rejected)
        came = since.infos, test, finite, since.seconds, compile_seconds
        row = record.next_row(rows, run, *came)
    row["adaptive_share"] = float(build.adaptive_share(build.rates(config), state))
    rows.append(record.append_row(config.out_dir, row))
    return record.has_failed(rows, finite, config.max_rejected)


def _save(job: Job, state: ccfl.State, rows: Rows, since: _Since, best: bool = True) -> None:
    """Saves a checkpoint; after its row, for one without it would leave a gap in the record."""
    score = rows[-1][f"test_{record.score_name(rows[-1])}"] if best else None
    what = about(job, int(state.round), len(rows), since.seconds)
    saving.save(job.checkpoints, state, since.infos, what, score)


def _progress_bar(config: Config, begun: int) -> tqdm:
    return tqdm(
        total=config.rounds,
        initial=begun,
        unit=" rounds",
        # None: silent where stderr is no terminal
        disable=None if config.progress and not config.process_id else True,
        bar_format="{l_bar}{bar}| {n}/{total} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]",
    )


def _pieces(job: Job, begun: int) -> Iterator[tuple[ccfl.Schedule, ccfl.FederatedData]]:
    """What is run at once, rounds and their data: first no rounds, then none past a stop."""
    rest = job.schedule.rounds(begun, job.config.rounds)
    parts = [(rest, job.data)]
    if job.memory is not None:
        put = partial(devices.put, mesh=job.mesh)
        parts = ccfl.stream_rounds(rest, job.data, job.memory, put)
    done = begun
    for part, data in parts:
        if done == begun:
            yield part.rounds(0, 0), data
        first = done
        for stop in cadence.stops(job.config, done, done + len(part.client)):
            for start in range(first, stop, build.PIECE):
                yield part.rounds(start - done, min(start + build.PIECE, stop) - done), data
            first = stop
        done = first


def _compile(job: Job, pieces: Iterator) -> tuple[ccfl.State, float]:
    """The state, and the seconds that compilation took."""
    no_rounds, data = next(pieces)
    started = time.perf_counter()
    state, _ = ccfl.run_rounds(job.round_fn, job.state, no_rounds, data, donate=True)
    return state, time.perf_counter() - started


def _advance(
    job: Job,
    state: ccfl.State,
    stop: int,
    since: _Since,
    pieces: Iterator,
    bar: tqdm,
    asked: Callable[[], bool],
) -> tuple[ccfl.State, _Since]:
    """The state after `stop` rounds in all, or fewer if asked to stop, and what it took."""
    infos, started = [since.infos] if since.infos else [], time.perf_counter()
    while int(state.round) < stop and not asked():
        # A piece that had a name here would still be in memory while the next one comes.
        state, info = ccfl.run_rounds(job.round_fn, state, *next(pieces), donate=True)
        infos.append(info)
        bar.update(len(info.train_loss))
    jax.block_until_ready(state)
    seconds = since.seconds + time.perf_counter() - started
    joined = jax.tree.map(lambda *parts: np.concatenate(parts), *infos) if infos else None
    return state, _Since(joined, seconds)
