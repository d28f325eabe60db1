"""A run, from its `Config` to its curves."""

from functools import partial
from pathlib import Path

import jax
from tqdm.auto import tqdm

from ccfl_jax.runs import callbacks, checkpoints, train_loop
from ccfl_jax.runs.metrics import Row
from ccfl_jax.runs.train_loop import Progress, Watch

from ..config.run_flags import Config
from ..figures import canvas, curves
from . import client_table, intervals, journal, report
from .run_setup import Job, close, prepare
from .signals import on_signals


def run(config: Config) -> tuple[Path, list[Row]]:
    """Runs `config`, from loading the data to drawing the curves.

    Returns:
        The run folder, and the rows of its metrics file.

    Raises:
        ValueError, OSError, ImportError: for settings, files or a folder that cannot be used.
    """
    job = prepare(config)
    return Path(job.config.out_dir), train(job)


def train(job: Job) -> list[Row]:
    """Trains the rest of `job`; prints a header before and a summary after.

    Evaluates on the whole test set at the start, every `eval_every` rounds and at the end. A row is
    marked diverged where the model or the test loss is not finite or more than `max_rejected`
    uploads were rejected, which end the run, or where that loss is a thousand times the first,
    from which a run may recover. A signal ends it after the current piece.

    Returns:
        All rows of the metrics file.

    Raises:
        OSError: if the metrics or a checkpoint cannot be written; written ones are whole.
    """
    config, progress = job.config, job.progress
    first = jax.process_index() == 0  # of several processes one prints and draws
    board = None
    if first:
        print(report.header(job), flush=True)
    try:
        if first and config.tensorboard:
            board = callbacks.TensorBoard(Path(config.out_dir) / callbacks.EVENTS)
            if progress.rows[0]:
                board(progress.rows[0])
        if not job.program.is_over(progress):
            shown = config.progress and first
            bar = train_loop.progress_bar(config.rounds, progress.done, shown)
            with on_signals() as stop, bar:
                watch = Watch(stop, _is_due(config), bar, partial(_after, bar, shown, board))
                store = journal.store(job.journal)
                progress = train_loop.train(job.program, progress, store, watch)
        rows = progress.rows[0]
        over = job.program.is_over(progress)
        told = client_table.written(job, progress.states) if over else []
        if first:
            checkpoints.save_params(config.out_dir, progress.states.params)
            _show(job, rows)
            print(*told, sep="\n", end="\n" if told else "")
    finally:
        close(job)
    return rows


def _after(bar: tqdm, shown: bool, board: callbacks.TensorBoard | None, progress: Progress) -> None:
    """What follows an evaluation, beside its row."""
    train_loop.show(bar, progress, shown)
    if board is not None:
        board(progress.rows[0], progress.states)


def _is_due(config: Config):
    times = intervals.times(config)
    return lambda done, over: over or times.is_checkpoint(done)


def _show(job: Job, rows: list[Row]) -> None:
    path = Path(job.config.out_dir) / "curves.png"
    title = f"{job.config.dataset}, {job.config.method or job.config.server}"
    draw = partial(curves.draw_curves, rows, path, title)
    is_new = len(rows) > len(job.progress.rows[0]) or not path.exists()
    is_drawn = canvas.drawn(path, draw) if is_new else True
    print(report.summary(rows, job.config))
    if report.is_short(rows, job.config):
        print(f"stopped   --resume --out_dir={job.config.out_dir} continues it")
    if is_drawn:
        print(f"curves    {path}")
