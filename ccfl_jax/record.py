"""The record of a run, on the host: its folder, configuration, metrics and checkpoints.

A run folder holds `config.json` (every resolved value and where it ran), `metrics.jsonl` (one
strict JSON object a line, rising in `round`), `schedule.npz`, `checkpoints/` (Orbax, the newest
two) and, once somebody drew them, `curves.png`. Nothing here runs inside a compiled program. Of
several processes the first one writes the rows; a checkpoint is saved by all together.
"""

import importlib.metadata
import json
import math
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ccfl_jax.rounds import Info, State
from ccfl_jax.types import Params

CONFIG, METRICS, SCHEDULE, CHECKPOINTS = (
    "config.json",
    "metrics.jsonl",
    "schedule.npz",
    "checkpoints",
)

_BLOWN_UP = 1000.0


def check_unused(folder: str | os.PathLike) -> None:
    """Refuses a path for a new run that holds anything already.

    Raises:
        OSError: if `folder` is a file or has content.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder}: found a file, legal: a new or an empty folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise FileExistsError(
            f"{folder}: found a folder with content, legal: a new or an empty folder, or resuming"
        )


def write_config(folder: str | os.PathLike, config: Mapping[str, Any]) -> None:
    """Writes `config.json`: the given values, and under "environment" the versions and devices."""
    text = json.dumps({**config, "environment": environment()}, indent=2, allow_nan=False)
    replace_file(Path(folder) / CONFIG, text + "\n")


def environment() -> dict[str, Any]:
    """Versions of the packages and the devices here."""
    device = jax.devices()[0]
    return {
        "ccfl_jax": _version("ccfl_jax"),
        "jax": jax.__version__,
        "backend": device.platform,
        "device": device.device_kind,
        "devices": jax.device_count(),
    }


def check_config(
    folder: str | os.PathLike, config: Mapping[str, Any], free: Collection[str]
) -> None:
    """Refuses to go on with a run under another configuration.

    Args:
        folder: of the run.
        config: what the run would go on with.
        free: the fields that may differ.

    Raises:
        FileNotFoundError: if `folder` holds no run.
        ValueError: naming every other field that differs, with both values.
    """
    path = Path(folder) / CONFIG
    if not path.is_file():
        raise FileNotFoundError(f"{folder}: found no {CONFIG}, legal: the folder of an earlier run")
    try:
        saved = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not readable as JSON ({error})") from None
    check_same(folder, saved, config, free)


def check_same(
    place: str | os.PathLike,
    saved: Mapping[str, Any],
    config: Mapping[str, Any],
    free: Collection[str],
) -> None:
    """Refuses settings that differ from those saved in `place`, but for the fields in `free`.

    Raises:
        ValueError: naming every other field that differs, with both values.
    """
    names = (saved.keys() | config.keys()) - {"environment", *free}
    differing = [
        f"{name} {saved.get(name)!r} -> {config.get(name)!r}"
        for name in sorted(names)
        if saved.get(name) != config.get(name)
    ]
    if differing:
        raise ValueError(
            f"{place}: found another configuration ({', '.join(differing)}), legal: the same, "
            f"except {', '.join(sorted(free))}"
        )


def append_row(folder: str | os.PathLike, row: Mapping[str, Any]) -> dict[str, Any]:
    """Adds a line to `metrics.jsonl`; returns the row as written, None for what is not finite."""
    row = plain(row)
    if jax.process_index() == 0:
        with open(Path(folder) / METRICS, "a") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
    return row


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row as strict JSON has it: Python's own numbers, None for what is not finite."""
    return {name: _plain(value) for name, value in row.items()}


def read_rows(folder: str | os.PathLike) -> list[dict[str, Any]]:
    """The rows of `metrics.jsonl`; a last line that was cut off while it was written is left out.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a line is not JSON.
    """
    path = Path(folder) / METRICS
    lines = path.read_text().split("\n")
    try:
        return [json.loads(line) for line in lines[:-1]]  # a whole line ends in a newline
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: found a line that is not JSON ({error})") from None


def drop_rows_after(folder: str | os.PathLike, last_round: int) -> list[dict[str, Any]]:
    """Cuts `metrics.jsonl` back to the rows up to `last_round`, and returns them.

    Raises:
        ValueError: if there is no row for `last_round`: what would follow has no sums to add to.
    """
    path = Path(folder) / METRICS
    kept = [row for row in read_rows(folder) if row["round"] <= last_round]
    if not kept or kept[-1]["round"] != last_round:
        raise ValueError(
            f"{path}: found no row for round {last_round}, legal: a row for the round of the "
            "newest checkpoint"
        )
    text = "".join(json.dumps(row) + "\n" for row in kept)
    if jax.process_index() == 0 and text != path.read_text():
        replace_file(path, text)
    return kept


def first_row(test: Mapping[str, float], compile_seconds: float, diverged: bool) -> dict[str, Any]:
    """The row of x_0: nothing was trained, so the training columns are None."""
    return {
        "round": 0,
        **{f"train_{name}": None for name in _metrics(test)},
        **{f"test_{name}": test[name] for name in _metrics(test)},
        "participants": None,
        "rejected": None,
        "mean_staleness": None,
        "mean_steps": None,
        "client_updates": 0,
        "samples": 0,
        "seconds": 0.0,
        "compile_seconds": compile_seconds,
        "diverged": diverged,
    }


def next_row(
    previous: Mapping[str, Any],
    info: Info,
    test: Mapping[str, float],
    seconds: float,
    compile_seconds: float | None,
    diverged: bool,
) -> dict[str, Any]:
    """The row that follows `previous` after the rounds of `info` (stacked `[rounds, ...]`).

    Args:
        previous: the row before, whose sums go on.
        info: the rounds since that row.
        test: "loss" and the task's other metrics, of the model after them.
        seconds: how long those rounds took, without compilation and evaluation.
        compile_seconds: for the first row that a process writes, otherwise None.
        diverged: whether the model is called lost, by whoever judges that.

    Returns:
        `round`, the server updates made: the row describes x_round. Since the previous row:
        `train_loss` and the other metrics, means over rounds of each round's unweighted mean over
        the uploads that counted (rounds without any left out, None without such a round);
        `participants` and `rejected`, sums over rounds; `mean_staleness` and `mean_steps`, over
        all slots that returned. Since round 0: `client_updates` (slots that returned, rejected ones
        too), `samples` (useful: masked work not counted) and `seconds`.
    """
    counted = np.asarray(info.participants) > 0
    returned = np.asarray(info.present)
    train = {**info.train_metrics, "loss": info.train_loss}
    return {
        "round": previous["round"] + len(counted),
        **{f"train_{name}": _mean(train[name], counted) for name in _metrics(test)},
        **{f"test_{name}": test[name] for name in _metrics(test)},
        "participants": int(np.sum(info.participants)),
        "rejected": int(np.sum(info.rejected)),
        "mean_staleness": _mean(info.staleness, returned),
        "mean_steps": _mean(info.steps, returned),
        "client_updates": previous["client_updates"] + int(returned.sum()),
        "samples": previous["samples"] + int(np.sum(info.samples, dtype=np.float64)),
        "seconds": previous["seconds"] + seconds,
        "compile_seconds": compile_seconds,
        "diverged": diverged,
    }


def is_diverged(test_loss: float, first_test_loss: float | None, finite: bool) -> bool:
    """Whether a model is called lost: not finite, or a test loss of a thousand times that of x_0.

    A first loss below 1, or none, counts as 1. From the second kind a run may come back.
    """
    return not finite or test_loss > _BLOWN_UP * max(first_test_loss or 0.0, 1.0)


def score_name(row: Mapping[str, Any]) -> str:
    """What a row calls the task's metric, the one besides the loss: "accuracy" or "recall_at_5"."""
    return next(name[5:] for name in row if name.startswith("test_") and name != "test_loss")


def is_finite(params: Params) -> bool:
    """Whether every number of a pytree is finite."""
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(params))


def open_checkpoints(folder: str | os.PathLike) -> Any:
    """The run's Orbax `CheckpointManager`: saves block, and the newest two are kept.

    Orbax is imported here because it takes most of a second.
    """
    import orbax.checkpoint as ocp

    return ocp.CheckpointManager(
        Path(folder).absolute() / CHECKPOINTS,
        item_handlers=ocp.StandardCheckpointHandler(),
        options=ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False),
    )


def save_state(checkpoints: Any, state: State) -> None:
    """Saves `state` under its round."""
    import orbax.checkpoint as ocp

    checkpoints.save(int(state.round), args=ocp.args.StandardSave(_with_raw_key(state)))


def restore_state(checkpoints: Any, like: State) -> State:
    """The newest saved state, in the structure, shapes and dtypes of `like`.

    Raises:
        FileNotFoundError: if there is no checkpoint.
        ValueError: naming a leaf that differs from `like` in presence, shape or dtype.
    """
    import orbax.checkpoint as ocp

    newest = checkpoints.latest_step()
    if newest is None:
        raise FileNotFoundError(
            f"{checkpoints.directory}: found no checkpoint, legal: a run that got as far as one"
        )
    target = _with_raw_key(like)
    saved, wanted = _leaves(checkpoints.item_metadata(newest).tree), _leaves(target)
    for name in sorted(saved.keys() | wanted.keys()):
        found, legal = saved.get(name), wanted.get(name)
        if found != legal:
            raise ValueError(f"{checkpoints.directory}: {name}: found {found}, legal: {legal}")
    restored = checkpoints.restore(newest, args=ocp.args.StandardRestore(target))
    key = jax.random.wrap_key_data(restored.key, impl=jax.random.key_impl(like.key))
    return restored._replace(key=key)


def _with_raw_key(state: State) -> State:
    # Orbax knows arrays of numbers only, not typed keys.
    return state._replace(key=jax.random.key_data(state.key))


def _leaves(tree: Any) -> dict[str, str]:
    named, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): f"{leaf.dtype} {leaf.shape}"
        for path, leaf in named
    }


def _metrics(test: Mapping[str, float]) -> list[str]:
    """The metrics' names, the loss first."""
    return ["loss", *sorted(test.keys() - {"loss"})]


def _mean(values: Any, where: np.ndarray) -> float | None:
    return float(np.asarray(values, np.float64)[where].mean()) if where.any() else None


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | jax.Array | np.ndarray):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def replace_file(path: Path, text: str) -> None:
    """Writes a file whole or not at all: a process stopped here leaves the old one or the new."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)
