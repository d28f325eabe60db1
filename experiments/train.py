"""Trains one federated run: `python -m experiments.train --flagfile=PRESET [--FLAG=VALUE ...]`.

Exit codes: 0 done; 2 a flag, value or file was refused (one line says why); 3 the run diverged;
4 its record could not be written; 5 SIGTERM or SIGINT stopped it, and `--resume` goes on.
JAX and what builds on it is imported inside the functions: `--help` and a wrong flag need not wait.
"""

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.flags import SERVERS, Config, help_text, parse
from experiments.stopping import STOPPED, on_signals

if TYPE_CHECKING:
    import numpy as np

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
    try:
        rows = train(job)
    except OSError as error:
        print("train: " + " ".join(str(error).split()), file=sys.stderr)
        return 4
    if is_short(rows, job.config):
        return STOPPED
    return 3 if rows[-1]["diverged"] else 0


def is_short(rows: list[dict[str, Any]], config: Config) -> bool:
    """Whether a run was stopped before its end."""
    return rows[-1]["round"] < config.rounds and not rows[-1]["diverged"]


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

    Evaluates on the whole test set at the start, every `eval_every` rounds and at the end. A row is
    marked diverged where the model or the test loss is not finite or more than `max_rejected`
    uploads were left out, which end the run, or where that loss is a thousand times what it was,
    from which a run may come back. A first SIGTERM or SIGINT ends it at the next piece's end.

    Returns:
        All rows of the metrics file.

    Raises:
        OSError: if the record cannot be written; what is in it is whole.
    """
    import jax

    from experiments.job import close, is_over
    from experiments.loop import go_on

    first = jax.process_index() == 0  # of several processes one speaks and draws
    if first:
        print(_header(job), flush=True)
    rows = list(job.rows)
    try:
        if not is_over(job):
            with on_signals() as asked:
                go_on(job, rows, asked)
        if first:
            _show(job, rows)
    finally:
        close(job)
    return rows


def _show(job: "Job", rows: list[dict[str, Any]]) -> None:
    from experiments.plot import draw_curves

    curves = Path(job.config.out_dir) / "curves.png"
    if len(rows) > len(job.rows) or not curves.exists():
        draw_curves(rows, curves, f"{job.config.dataset}, {job.config.server}")
    print(_summary(rows))
    if is_short(rows, job.config):
        print(f"stopped   --resume --out_dir={job.config.out_dir} goes on")
    print(f"curves    {curves}")


def _header(job: "Job") -> str:
    import jax
    import numpy as np

    config, sizes = job.config, np.asarray(job.data.sizes)
    leaves = jax.tree.leaves(job.state.params)
    history = sum(leaf.nbytes for leaf in jax.tree.leaves(job.state.history.models))
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
            f"{np.median(sizes):g}, max {sizes.max()}{_left_out(job)}",
            f"local     1 to {most} {unit} of SGD, rate {config.local_lr:g}, batch "
            f"{config.batch_size}; delta divided by {config.normalise}",
            f"method    {config.server}: {', '.join(method)}",
            f"rounds    {config.rounds} of {config.buffer_size} uploads, staleness up to "
            f"{_oldest(job)}; evaluation every {config.eval_every}",
            f"model     {config.model}: {sum(leaf.size for leaf in leaves)} parameters; history of "
            f"{len(job.state.history.version)} models, {history / 1e6:.2f} MB; computed in "
            f"{config.compute_dtype}",
            f"device    {len(devices)} x {devices[0].device_kind} ({devices[0].platform})",
            *_theorem(job, sizes),
        ]
    )


def _oldest(job: "Job") -> int:
    """The staleness that may be, or that the schedule's file has."""
    if job.config.schedule_file is None:
        return job.config.max_delay
    return int(job.schedule.staleness.max())


def _left_out(job: "Job") -> str:
    if not job.left_out:
        return ""
    return f"; {job.left_out} more have fewer than {job.config.min_examples} and are left out"


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
