"""Checkpoints, on the host: kept by Orbax, and written while training goes on.

One holds `state`, all that the next round needs; `infos`, what the rounds since the last row of the
record brought; and `about`, strict JSON of whoever saves, with a checksum of every array. Orbax is
imported inside the functions because it takes most of a second.
"""

import gc
import logging
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ccfl_jax.rounds import Info, State

CHECKPOINTS = "checkpoints"


class Saved(NamedTuple):
    """What a checkpoint gives back.

    Attributes:
        state: where the run stood.
        infos: the rounds since the last row of the record, stacked; None where there are none.
        about: what was said of it when it was saved.
    """

    state: State
    infos: Info | None
    about: dict[str, Any]


def open_checkpoints(folder: str | os.PathLike, keep: int = 2) -> Any:
    """The Orbax `CheckpointManager` of `folder`, which keeps the newest `keep` and the best.

    What a process that was killed left half-written is removed.
    """
    import orbax.checkpoint as ocp
    from orbax.checkpoint import checkpoint_managers as managers

    best = managers.BestN(
        get_metric_fn=lambda metrics: metrics["score"], n=1, keep_checkpoints_without_metrics=False
    )
    return ocp.CheckpointManager(
        Path(folder).absolute() / CHECKPOINTS,
        item_handlers={
            "state": ocp.StandardCheckpointHandler(),
            "infos": ocp.StandardCheckpointHandler(),
            "about": ocp.JsonCheckpointHandler(),
        },
        options=ocp.CheckpointManagerOptions(
            preservation_policy=managers.AnyPreservationPolicy([managers.LatestN(keep), best]),
            cleanup_tmp_directories=True,
        ),
    )


def save(
    checkpoints: Any,
    state: State,
    infos: Info | None = None,
    about: Mapping[str, Any] | None = None,
    score: float | None = None,
) -> None:
    """Saves `state` under its round; returns once it is copied, the disk gets it meanwhile.

    Args:
        checkpoints: as opened.
        state: of a run, or those of trials at the same round, stacked.
        infos: the rounds since the last row of the record, stacked NumPy arrays.
        about: strict JSON, anything that going on needs besides.
        score: by which the best checkpoint is kept; without one this is not the best.

    Raises:
        OSError: if this one, or the one before it, could not be written.
    """
    import orbax.checkpoint as ocp

    state = _with_raw_key(state)
    parts = {"state": state, "infos": None if infos is None else _named(infos)}
    sums = {name: _checksums(part) for name, part in parts.items()}
    items = {name: ocp.args.StandardSave(part) for name, part in parts.items() if part is not None}
    items["about"] = ocp.args.JsonSave({"about": dict(about or {}), "checksums": sums})
    metrics = None if score is None else {"score": float(score)}
    try:
        checkpoints.save(
            int(np.max(state.round)), args=ocp.args.Composite(**items), metrics=metrics
        )
    except Exception as error:  # Orbax and TensorStore raise whatever the file system gave them
        raise _not_written(checkpoints, error) from error


def close(checkpoints: Any) -> None:
    """Waits until all is on disk.

    Raises:
        OSError: if the last checkpoint could not be written.
    """
    try:
        checkpoints.wait_until_finished()
        checkpoints.close()
    except Exception as error:
        raise _not_written(checkpoints, error) from error


def restore(checkpoints: Any, like: State) -> tuple[Saved | None, list[str]]:
    """The newest checkpoint that is whole, None where there is none at all, and what is not whole.

    One that is not whole (cut off, emptied, changed: its checksums tell) is removed: going on
    comes by its round again.

    Args:
        checkpoints: as opened.
        like: a state with the structure, shapes, dtypes and shardings wanted.

    Returns:
        What was saved, and a line for every newer checkpoint that was not whole.

    Raises:
        ValueError: naming a leaf that differs from `like` in presence, shape or dtype.
        OSError: if there are checkpoints, but none is whole.
    """
    checkpoints.wait_until_finished()
    broken = []
    for number in sorted(checkpoints.all_steps(), reverse=True):
        differing = None
        try:
            differing = _differing(checkpoints, number, _with_raw_key(like))
            if differing is None:
                saved = _restore(checkpoints, number, like)
                break
        except Exception as error:  # a damaged file can raise anything
            broken.append(f"the checkpoint of round {number} is not whole ({_line(error)})")
        if broken:
            _forget_tasks()
        if differing is not None:
            raise ValueError(f"{checkpoints.directory}: {differing}")
    else:
        if broken:
            raise OSError(f"{checkpoints.directory}: found none that is whole: {broken[0]}")
        return None, []
    newer = [number for number in checkpoints.all_steps() if number > int(saved.about["round"])]
    for number in newer:
        checkpoints.delete(number)
    return saved, broken


def _restore(checkpoints: Any, number: int, like: State) -> Saved:
    import orbax.checkpoint as ocp

    target = _with_raw_key(like)
    said = checkpoints.restore(number, args=ocp.args.Composite(about=ocp.args.JsonRestore()))
    sums = said["about"]["checksums"]
    wanted = {"state": ocp.args.StandardRestore(target)}
    if sums["infos"] is not None:
        wanted["infos"] = ocp.args.StandardRestore()
    found = checkpoints.restore(number, args=ocp.args.Composite(**wanted))
    parts = {name: found[name] if name in wanted else None for name in sums}
    for name, part in parts.items():
        if _checksums(part) != sums[name]:
            raise ValueError(f"{name}: its numbers are not those that were saved")
    key = jax.random.wrap_key_data(parts["state"].key, impl=jax.random.key_impl(like.key))
    infos = parts["infos"] and Info(**jax.tree.map(np.asarray, parts["infos"]))
    about = {**said["about"]["about"], "round": number}
    return Saved(parts["state"]._replace(key=key), infos, about)


def _differing(checkpoints: Any, number: int, target: State) -> str | None:
    """The first leaf that is not as in `target`, with what was found and what is legal."""
    saved, wanted = (_leaves(t) for t in (checkpoints.item_metadata(number)["state"].tree, target))
    for name in sorted(saved.keys() | wanted.keys()):
        found, legal = saved.get(name), wanted.get(name)
        if found != legal:
            return f"{name}: found {found}, legal: {legal}"
    return None


def _leaves(tree: Any) -> dict[str, str]:
    named, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): f"{leaf.dtype} {leaf.shape}"
        for path, leaf in named
    }


def _checksums(tree: Any) -> list[int] | None:
    # TensorStore does not notice a changed byte inside an array.
    if tree is None:
        return None
    return [zlib.crc32(np.ravel(leaf).view(np.uint8)) for leaf in jax.tree.leaves(tree)]


def _named(infos: Info) -> dict[str, Any]:
    # Without a target Orbax gives back dicts; and it is given NumPy's arrays, no device's.
    return jax.tree.map(np.asarray, infos._asdict())


def _with_raw_key(state: State) -> State:
    # Orbax knows arrays of numbers only, not typed keys.
    return state._replace(key=jax.random.key_data(state.key))


def _forget_tasks() -> None:
    # Orbax leaves tasks with errors that nobody fetched; asyncio would print them later.
    log = logging.getLogger("asyncio")
    level = log.level
    log.setLevel(logging.CRITICAL)
    gc.collect()
    log.setLevel(level)


def _not_written(checkpoints: Any, error: Exception) -> OSError:
    return OSError(f"{checkpoints.directory}: a checkpoint could not be written ({_line(error)})")


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
