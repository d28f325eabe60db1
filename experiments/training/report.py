"""The report of a run: a header before, a summary after."""

import math

import jax
import numpy as np

from ccfl_jax.runs import metrics, targets
from ccfl_jax.runs.metrics import Row

from ..config.methods import FORMS, SERVERS
from ..config.run_flags import Config
from ..config.settings import SEEDS
from . import intervals, method, theorem_report
from .run_setup import Job

_ADAPTS = 0.01  # share of coordinates, below which a server is momentum in all but name


def is_short(rows: list[Row], config: Config) -> bool:
    """Whether a run was stopped before its end."""
    target, last = intervals.target(config), rows[-1]
    reached = target is not None and targets.is_reached(last, target)
    return last["round"] < config.rounds and not last["diverged"] and not reached


def header(job: Job) -> str:
    """Lines on the data, clients, work, method, rounds, model and devices of a run."""
    config, problem, state = job.config, job.problem, job.progress.states
    sizes = np.diff(np.asarray(problem.data.offsets))
    leaves = jax.tree.leaves(state.params)
    history = sum(leaf.nbytes for leaf in jax.tree.leaves(state.history.models))
    alpha = "" if config.alpha is None else f" alpha {config.alpha:g}"
    numbers = [name for name in ("server_lr", *SERVERS[config.server]) if name != "local_lr"]
    method = [config.server] if config.method not in (None, config.server) else []
    method += [f"{name} {getattr(config, name):g}" for name in numbers]
    method += [f"{flag} {getattr(config, flag)}" for flag in FORMS if getattr(config, flag)]
    devices = sorted(leaves[0].sharding.device_set, key=lambda device: device.id)
    return "\n".join(
        [
            f"run       {config.out_dir}, {_seeds(config)}",
            f"data      {config.dataset}: {sizes.sum()} to train, {_scored(job)}{_streamed(job)}",
            f"clients   {len(sizes)}, {config.partition}{alpha}; samples min {sizes.min()}, median "
            f"{np.median(sizes):g}, max {sizes.max()}{_left_out(job)}",
            f"local     {_local(job)}, batch {config.batch_size}; delta divided by "
            f"{config.normalise}",
            f"method    {config.method or config.server}: {', '.join(method)}",
            f"rounds    {config.rounds} of {config.buffer_size} uploads, staleness up to "
            f"{_oldest(job)}; evaluation every {config.eval_every}",
            f"model     {config.model}: {sum(leaf.size for leaf in leaves)} parameters; history of "
            f"{len(state.history.version)} models, {history / 1e6:.2f} MB; computed in "
            f"{config.compute_dtype}",
            f"device    {len(devices)} x {devices[0].device_kind} ({devices[0].platform})",
            *_theorem(job, sizes),
        ]
    )


def summary(rows: list[Row], config: Config) -> str:
    """Lines on the result, the speed, and on a run that diverged or whose server did not adapt."""
    last, seconds = rows[-1], rows[-1]["seconds"] or math.nan
    score = metrics.score_name(last)
    scored = [row for row in rows if row[f"test_{score}"] is not None]
    best = max(scored, key=lambda row: metrics.goodness(score, row[f"test_{score}"]), default=last)
    compiling = sum(row["compile_seconds"] or 0.0 for row in rows)
    lines = [
        f"result    test {score} {_number(last[f'test_{score}'])} after {last['round']} rounds; "
        f"best {_number(best[f'test_{score}'])} after {best['round']}",
        f"speed     {last['round'] / seconds:.2f} rounds/s, {last['samples'] / seconds:.0f} useful "
        f"samples/s in {last['seconds']:.1f} s of training; {compiling:.1f} s of compilation apart",
    ]
    if target := intervals.target(config):
        lines.append(_to_target(config, targets.first(rows, target)))
    if "epsilon" in last:
        lines.append(
            f"privacy   epsilon {_number(last['epsilon'])} at delta {config.delta:g}, of the "
            "client that it exposes most"
        )
    if last["diverged"]:
        loss = _number(last["test_loss"])
        lines.append(f"DIVERGED  test loss {loss} after {last['round']} rounds")
    shares = [row["adaptive_share"] for row in rows if row.get("adaptive_share") is not None]
    if config.eps and shares and max(shares) < _ADAPTS and not last["diverged"]:
        floor = float(method.floor(config, {"eps": config.eps}))
        lines.append(
            f"MOMENTUM  {config.server} adapted at {max(shares):.3f} of the coordinates at most (a "
            f"root above {floor:.3g}): it was momentum at rate server_lr / {floor:.3g} = "
            f"{config.server_lr / floor:.3g}; with a smaller --eps, and --server_lr, it adapts"
        )
    return "\n".join(lines)


def _seeds(config: Config) -> str:
    """The seed, and those of its own that data, first model and schedule have."""
    own = {name: getattr(config, name) for name in SEEDS}
    return ", ".join(f"{name} {seed}" for name, seed in own.items() if seed is not None)


def _to_target(config: Config, row: Row | None) -> str:
    """What it took to the target."""
    if row is None:
        return f"target    {config.target}: not reached"
    hours = (
        "" if row["virtual_time"] is None else f", {row['virtual_time'] / 3600:.4g} virtual hours"
    )
    return (
        f"target    {config.target} after {row['round']} rounds, {row['client_updates']} updates, "
        f"{row['bytes_sent'] / 1e6:.4g} MB sent{hours}, {row['seconds']:.1f} s"
    )


def _local(job: Job) -> str:
    """The work of a client, as the schedule has it, and its optimiser."""
    config, schedule = job.config, job.problem.schedule
    amounts = np.unique(schedule.work[schedule.working()])
    between = " to ".join(map(str, amounts if len(amounts) < 3 else amounts[[0, -1]]))
    work = f"{between or 0} {config.work_unit}"
    if (config.local or "").startswith("adam"):  # the rate is in brackets
        return f"{work} of {config.local}"
    return f"{work} of {config.local or 'SGD'}, rate {config.local_lr:g}"


def _scored(job: Job) -> str:
    """The samples that models are scored on."""
    test, *held = (len(next(iter(own.values()))) for own in job.problem.scored)
    tested = {name: len(data.indices) for name, data in job.problem.tested.items()}
    words = {"clients": "to test each client on", "unseen": "of unseen clients"}
    single = (f"{count} {words[name]}" for name, count in tested.items())
    return ", ".join([f"{test} to test", *(f"{count} held out" for count in held), *single])


def _oldest(job: Job) -> int:
    """The largest staleness that the flags allow, or of the schedule file."""
    if job.config.schedule_file is None:
        return job.config.max_delay
    return int(job.problem.schedule.staleness.max())


def _left_out(job: Job) -> str:
    count, least = job.problem.left_out, job.config.min_examples
    return f"; {count} more have fewer than {least} and are left out" if count else ""


def _theorem(job: Job, sizes: np.ndarray) -> list[str]:
    """The theorem's conditions, where its constants were given."""
    if job.config.smoothness is None:
        return []
    return theorem_report.lines(job.config, job.problem.schedule, sizes)


def _streamed(job: Job) -> str:
    """How the training data are streamed, where they are."""
    if job.pieces is None or len(job.pieces.starts) < 2:
        return ""
    lengths = np.diff(job.pieces.starts)
    return (
        f"; streamed, {len(lengths)} pieces of {lengths.min()} to {lengths.max()} rounds, "
        f"{job.pieces.nbytes / 1e6:.3g} MB each"
    )


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"
