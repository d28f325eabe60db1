"""Trains one federated run: `python -m experiments.train --flagfile=PRESET [--FLAG=VALUE ...]`.

Exit codes: 0 done; 2 a flag, value or file was refused (one line says why); 3 the run diverged.
JAX and what builds on it is imported inside the functions: `--help` and a wrong flag need not wait.
"""

import contextlib
import math
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.flags import SERVERS, Config, help_text, parse

if TYPE_CHECKING:
    import numpy as np
    from tqdm import tqdm

    from ccfl_jax import FederatedData, Info, Schedule, State
    from experiments.job import Job


def main(argv: list[str]) -> int:
    """Runs the command line `argv` and returns the exit code."""
    if "--help" in argv[1:]:
        print(help_text())
        return 0
    try:
        config = parse(argv)

        from experiments.job import prepare

        job = prepare(config)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        print("train: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    return 3 if train(job)[-1]["diverged"] else 0


def run(config: Config) -> tuple[Path, list[dict[str, Any]]]:
    """Does the run of `config`, from loading the data to drawing the curves.

    Returns:
        The run folder, and the rows of its metrics file.

    Raises:
        ValueError, OSError, ImportError: for settings, files or a folder that cannot be used.
    """
    from experiments.job import prepare

    job = prepare(config)
    return Path(job.config.out_dir), train(job)


def train(job: "Job") -> list[dict[str, Any]]:
    """Trains what is left of `job` and records it; prints a header before and a summary after.

    Evaluates on the whole test set, with a checkpoint, at the start, every `eval_every` rounds and
    at the end. A row is marked diverged where the model or the test loss is not finite, which ends
    the run, or where that loss is a thousand times what it was, from which a run may come back.

    Returns:
        All rows of the metrics file.
    """
    import jax

    from experiments.job import is_over
    from experiments.plot import draw_curves

    first = jax.process_index() == 0  # of several processes one speaks and draws
    if first:
        print(_header(job), flush=True)
    rows = list(job.rows)
    if not is_over(job):
        _train_on(job, rows)
    job.checkpoints.close()
    curves = Path(job.config.out_dir) / "curves.png"
    if not first:
        return rows
    if len(rows) > len(job.rows) or not curves.exists():
        draw_curves(rows, curves, f"{job.config.dataset}, {job.config.server}")
    print(_summary(rows))
    print(f"curves    {curves}")
    return rows


def _train_on(job: "Job", rows: list[dict[str, Any]]) -> None:
    """Goes from evaluation to evaluation; each row that it adds to `rows` is on disk by then."""
    from ccfl_jax import record

    config, begun = job.config, int(job.state.round)
    with contextlib.closing(_pieces(job, begun)) as pieces:
        state, compile_seconds = _compile(job, pieces)
        if not rows:
            test, finite = _evaluate(job, state)
            row = record.first_row(test, compile_seconds, diverged=not finite)
            rows.append(_keep(job, state, row))
            compile_seconds = None
            if not finite:
                return
        with _progress_bar(config, begun) as bar:
            for stop in _stops(begun, config.rounds, config.eval_every):
                state, info, seconds = _advance(job, state, stop, pieces, bar)
                test, finite = _evaluate(job, state)
                diverged = record.is_diverged(test["loss"], rows[0]["test_loss"], finite)
                row = record.next_row(rows[-1], info, test, seconds, compile_seconds, diverged)
                rows.append(_keep(job, state, row))
                compile_seconds = None
                score = record.score_name(row)
                bar.set_postfix_str(f"test {score} {test[score]:.4f}")
                if not finite:
                    break


def _keep(job: "Job", state: "State", row: dict[str, Any]) -> dict[str, Any]:
    """Puts an evaluation on disk, and returns the row as written."""
    from ccfl_jax import record
    from experiments import build

    share = build.adaptive_share(build.rates(job.config), state)
    row = row | {"adaptive_share": float(share)}
    # The row first: a checkpoint without its row would leave a gap that nothing fills.
    row = record.append_row(job.config.out_dir, row)
    record.save_state(job.checkpoints, state)
    return row


def _progress_bar(config: Config, begun: int) -> "tqdm":
    from tqdm import tqdm

    return tqdm(
        total=config.rounds,
        initial=begun,
        unit=" rounds",
        # None: silent where stderr is no terminal
        disable=None if config.progress and not config.process_id else True,
        bar_format="{l_bar}{bar}| {n}/{total} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]",
    )


def _stops(begun: int, rounds: int, every: int) -> list[int]:
    """The rounds after `begun` with an evaluation: the multiples of `every`, and the end."""
    return [*range((begun // every + 1) * every, rounds, every), rounds]


def _pieces(job: "Job", begun: int) -> Iterator[tuple["Schedule", "FederatedData"]]:
    """What is run at once, rounds and their data: first no rounds, then none past an evaluation."""
    import ccfl_jax as ccfl
    from experiments import devices
    from experiments.build import PIECE

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
        for stop in _stops(done, done + len(part.client), job.config.eval_every):
            for start in range(first, stop, PIECE):
                yield part.rounds(start - done, min(start + PIECE, stop) - done), data
            first = stop
        done = first


def _compile(job: "Job", pieces: Iterator) -> tuple["State", float]:
    """The state, and the seconds that compilation took."""
    import ccfl_jax as ccfl

    no_rounds, data = next(pieces)
    started = time.perf_counter()
    state, _ = ccfl.run_rounds(job.round_fn, job.state, no_rounds, data, donate=True)
    return state, time.perf_counter() - started


def _advance(
    job: "Job", state: "State", stop: int, pieces: Iterator, bar: "tqdm"
) -> tuple["State", "Info", float]:
    """The state after `stop` rounds in all, the infos on the way there, the seconds it took."""
    import jax
    import numpy as np

    import ccfl_jax as ccfl

    infos, started = [], time.perf_counter()
    while int(state.round) < stop:
        # A piece that had a name here would still be in memory while the next one comes.
        state, info = ccfl.run_rounds(job.round_fn, state, *next(pieces), donate=True)
        infos.append(info)
        bar.update(len(info.train_loss))
    jax.block_until_ready(state)
    seconds = time.perf_counter() - started
    return state, jax.tree.map(lambda *parts: np.concatenate(parts), *infos), seconds


def _evaluate(job: "Job", state: "State") -> tuple[dict[str, float], bool]:
    """Loss and accuracy on the test set, and whether that loss and the model are finite."""
    import ccfl_jax as ccfl
    from ccfl_jax import record

    test = ccfl.evaluate(job.task, state.params, job.test)
    return test, math.isfinite(test["loss"]) and record.is_finite(state.params)


def _header(job: "Job") -> str:
    import jax
    import numpy as np

    config, sizes = job.config, np.asarray(job.data.sizes)
    leaves = jax.tree.leaves(job.state.params)
    history = sum(leaf.nbytes for leaf in jax.tree.leaves(job.state.history))
    unit = "epochs" if config.local_steps is None else "steps"
    most = int((config.local_epochs or config.local_steps) * config.randomness)
    alpha = "" if config.alpha is None else f" alpha {config.alpha:g}"
    method = [
        f"{name} {getattr(config, name):g}" for name in ("server_lr", *SERVERS[config.server])
    ]
    devices = sorted(leaves[0].sharding.device_set, key=lambda device: device.id)
    return "\n".join(
        [
            f"run       {config.out_dir}, seed {config.seed}",
            f"data      {config.dataset}: {sizes.sum()} to train, {len(job.test['y'])} to test"
            f"{_streamed(job)}",
            f"clients   {len(sizes)}, {config.partition}{alpha}; samples min {sizes.min()}, median "
            f"{np.median(sizes):g}, max {sizes.max()}",
            f"local     1 to {most} {unit} of SGD, rate {config.local_lr:g}, batch "
            f"{config.batch_size}; delta divided by {config.normalise}",
            f"method    {config.server}: {', '.join(method)}",
            f"rounds    {config.rounds} of {config.buffer_size} uploads, staleness up to "
            f"{config.max_delay}; evaluation every {config.eval_every}",
            f"model     {config.model}: {sum(leaf.size for leaf in leaves)} parameters; history of "
            f"{config.max_delay + 1} models, {history / 1e6:.2f} MB; computed in "
            f"{config.compute_dtype}",
            f"device    {len(devices)} x {devices[0].device_kind} ({devices[0].platform})",
            *_theorem(job, sizes),
        ]
    )


def _theorem(job: "Job", sizes: "np.ndarray") -> list[str]:
    """The theorem's conditions, where its constants were given."""
    from experiments import conditions

    if job.config.smoothness is None:
        return []
    return conditions.lines(job.config, job.schedule, sizes)


def _streamed(job: "Job") -> str:
    """How the training data come to the devices, where they are not there already."""
    import numpy as np

    from ccfl_jax.stream import cut

    rest = job.schedule.rounds(int(job.state.round), job.config.rounds)
    if job.memory is None or not len(rest.client):
        return ""
    pieces = cut(rest, job.data, job.memory)
    lengths = np.diff(pieces.starts)
    return (
        f"; streamed, {len(lengths)} pieces of {lengths.min()} to {lengths.max()} rounds, "
        f"{pieces.nbytes / 1e6:.3g} MB each"
    )


def _summary(rows: list[dict[str, Any]]) -> str:
    from ccfl_jax import record

    last, seconds = rows[-1], rows[-1]["seconds"] or math.nan
    score = record.score_name(last)
    scored = [row for row in rows if row[f"test_{score}"] is not None]
    best = max(scored, key=lambda row: row[f"test_{score}"], default=last)
    compiling = sum(row["compile_seconds"] or 0.0 for row in rows)
    lines = [
        f"result    test {score} {_number(last[f'test_{score}'])} after {last['round']} rounds; "
        f"best {_number(best[f'test_{score}'])} after {best['round']}",
        f"speed     {last['round'] / seconds:.2f} rounds/s, {last['samples'] / seconds:.0f} useful "
        f"samples/s in {last['seconds']:.1f} s of training; {compiling:.1f} s of compilation apart",
    ]
    if last["diverged"]:
        loss = _number(last["test_loss"])
        lines.append(f"DIVERGED  test loss {loss} after {last['round']} rounds")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main(sys.argv))
