"""Checkpoints: kept by Orbax, and written while training continues.

A checkpoint holds `state`, all that the next round needs; `infos` of the rounds since the last row
of the metrics; and `about`, strict JSON of the caller; in one file with a checksum of every byte.
Orbax is imported inside the functions because that takes most of a second.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ccfl_jax.algorithm.types import Params
from ccfl_jax.data.arrays import Array, native
from ccfl_jax.engine.state import Info, State
from ccfl_jax.io.files import write_whole

CHECKPOINTS, PARAMS = "checkpoints", "params.npz"
_ITEM, _STATE, _INFOS = "run", "state.", "infos."
_MODEL = f"{_STATE}params"


class Saved(NamedTuple):
    """A restored checkpoint.

    Attributes:
        state: the state before the next round.
        infos: the rounds since the last row of the metrics, stacked; None without any.
        about: the JSON value that was saved with it.
    """

    state: State
    infos: Info | None
    about: dict[str, Any]


def open_checkpoints(folder: str | os.PathLike, keep: int = 2, read_only: bool = False) -> Any:
    """The Orbax `CheckpointManager` of `folder`, which keeps the newest `keep` and the best.

    Half-written checkpoints of a killed process are removed, unless it only reads.
    """
    import orbax.checkpoint as ocp
    from orbax.checkpoint import checkpoint_managers as managers

    from ccfl_jax.runs.array_file import ArrayFileHandler

    def score(metrics: Mapping[str, float]) -> float:
        return metrics["score"]

    best = managers.BestN(get_metric_fn=score, n=1, keep_checkpoints_without_metrics=False)
    options = ocp.CheckpointManagerOptions(
        best_fn=score,  # else scores are not on disk, and a resumed run forgets the best
        preservation_policy=managers.AnyPreservationPolicy([managers.LatestN(keep), best]),
        cleanup_tmp_directories=not read_only,
        read_only=read_only,
        create=not read_only,
        save_interval_steps=0 if read_only else 1,
    )
    path, handlers = Path(folder).absolute() / CHECKPOINTS, {_ITEM: ArrayFileHandler()}
    with _without_warnings():
        return ocp.CheckpointManager(path, item_handlers=handlers, options=options)


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Orbax warns of what is wanted here: that a folder is only read, that some have no score."""

    def is_error(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    logger = logging.getLogger("absl")
    logger.addFilter(is_error)
    try:
        yield
    finally:
        logger.removeFilter(is_error)


def save(
    checkpoints: Any,
    state: State,
    infos: Info | None = None,
    about: Mapping[str, Any] | None = None,
    score: float | None = None,
) -> None:
    """Saves `state` under its round; returns once it is copied, before it is written.

    Args:
        checkpoints: from `open_checkpoints`.
        state: of a run, or of trials at the same round, stacked.
        infos: the rounds since the last row of the metrics, stacked NumPy arrays.
        about: strict JSON, all else that resuming needs.
        score: the largest marks the best checkpoint, which is kept; None: not the best.

    Raises:
        OSError: if this one, or the one before it, could not be written.
        ValueError: for two leaves of the same name, as of {"a.b"} and {"a": {"b"}}.
    """
    import orbax.checkpoint as ocp

    from ccfl_jax.runs.array_file import ArrayFile

    state, infos = native((state, infos))
    # Copies: the buffers are donated to the next rounds.
    arrays = {_STATE + name: np.array(a) for name, a in _named(_with_raw_key(state)).items()}
    if infos is not None:
        arrays |= {_INFOS + name: np.array(a) for name, a in _named(infos._asdict()).items()}
    file = ArrayFile(arrays, dict(about or {}))
    metrics = None if score is None else {"score": float(score)}
    try:
        own = ocp.args.Composite(**{_ITEM: file})
        with _without_warnings():
            checkpoints.save(int(np.asarray(state.round).max()), args=own, metrics=metrics)
    except Exception as error:  # Orbax raises the file system's errors, of many kinds
        raise _not_written(checkpoints, error) from error


def close(checkpoints: Any) -> None:
    """Waits until all checkpoints are written.

    Raises:
        OSError: if the last checkpoint could not be written.
    """
    try:
        checkpoints.wait_until_finished()
        checkpoints.close()
    except Exception as error:
        raise _not_written(checkpoints, error) from error


def restore(
    checkpoints: Any, like: State | Callable[[dict[str, Any]], State]
) -> tuple[Saved | None, list[str]]:
    """The newest undamaged checkpoint, None if there is none at all, and the damaged ones.

    A damaged checkpoint (cut off, emptied or changed, by its checksums) is removed: the run that
    resumes will pass its round again.

    Args:
        checkpoints: from `open_checkpoints`.
        like: a state with the structure, shapes, dtypes and shardings wanted, or a function that
            returns it for the checkpoint's `about`.

    Returns:
        The checkpoint, and a line for every newer one that was damaged.

    Raises:
        ValueError: with a leaf that differs from `like` in presence, shape or dtype.
        OSError: if all checkpoints are damaged.
    """
    checkpoints.wait_until_finished()
    broken = []
    for number in sorted(checkpoints.all_steps(), reverse=True):
        try:
            arrays, about = _read(checkpoints, number)
        except Exception as error:  # a damaged file can raise anything
            broken.append(f"the checkpoint of round {number} is not whole ({_line(error)})")
            continue
        wanted = native(like(about) if callable(like) else like)
        saved = _saved(arrays, {**about, "round": number}, wanted, checkpoints.directory)
        break
    else:
        if broken:
            raise OSError(
                f"{checkpoints.directory}: expected a whole checkpoint, found {broken[0]}"
            )
        return None, []
    newer = [number for number in checkpoints.all_steps() if number > int(saved.about["round"])]
    for number in newer:
        checkpoints.delete(number)
    return saved, broken


def read_params(checkpoints: Any, number: int, like: Params) -> Params:
    """The model in the checkpoint of round `number`, as NumPy arrays.

    Args:
        checkpoints: from `open_checkpoints`.
        number: of a checkpoint that is there.
        like: a model of the task, or its shapes.

    Raises:
        ValueError: with a leaf that differs from `like` in presence, shape or dtype.
        OSError: if the checkpoint is damaged.
    """
    place = Path(checkpoints.directory) / str(number)
    try:
        arrays, _ = _read(checkpoints, number)
    except Exception as error:  # a damaged file can raise anything
        raise OSError(f"{place}: expected a whole checkpoint, found {_line(error)}") from error
    own = {n: a for n, a in arrays.items() if f"{n}.".startswith(f"{_MODEL}.")}
    saved = {n.removeprefix(_MODEL).removeprefix("."): a for n, a in own.items()}
    wanted = _named(like)
    _check_alike(saved, wanted, place)
    return jax.tree.unflatten(jax.tree.structure(like), [saved[name] for name in wanted])


def save_params(folder: str | os.PathLike, params: Params) -> None:
    """Writes a model to `params.npz`, for readers without this library: an array for each leaf.

    Names are paths, with a dot between two parts.
    """
    arrays: dict[str, Any] = {
        name or "params": np.asarray(leaf) for name, leaf in _named(params).items()
    }
    write_whole(Path(folder) / PARAMS, lambda file: np.savez(file, **arrays))


def _read(checkpoints: Any, number: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    import orbax.checkpoint as ocp

    from ccfl_jax.runs.array_file import ArrayFile

    found = checkpoints.restore(number, args=ocp.args.Composite(**{_ITEM: ArrayFile()}))[_ITEM]
    return found.arrays, found.about


def _saved(arrays: dict[str, np.ndarray], about: dict[str, Any], like: State, place: Any) -> Saved:
    """The checkpoint with a state like `like`; ValueError for other leaves."""
    target = _with_raw_key(like)
    saved = {n.removeprefix(_STATE): a for n, a in arrays.items() if n.startswith(_STATE)}
    wanted = _named(target)
    _check_alike(saved, wanted, place)
    placed = [_placed(saved[name], leaf) for name, leaf in wanted.items()]
    state = jax.tree.unflatten(jax.tree.structure(target), placed)
    key = jax.random.wrap_key_data(state.key, impl=jax.random.key_impl(like.key))
    return Saved(state._replace(key=key), _infos(arrays), about)


def _check_alike(saved: Mapping[str, Any], wanted: Mapping[str, Any], place: Any) -> None:
    for name in sorted(saved.keys() | wanted.keys()):
        found, expected = (_kind(part.get(name)) for part in (saved, wanted))
        if found != expected:
            raise ValueError(f"{place}, {name}: expected {expected}, found {found}")


def _infos(arrays: dict[str, np.ndarray]) -> Info | None:
    found: dict[str, Any] = {}
    for name, array in arrays.items():
        if name.startswith(_INFOS):
            field, _, metric = name.removeprefix(_INFOS).partition(".")
            if metric:
                found.setdefault(field, {})[metric] = array
            else:
                found[field] = array
    return Info(**{"train_metrics": {}, **found}) if found else None


def _named(tree: Any) -> dict[str, Any]:
    """Leaves by name, in their order in the tree."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    named: dict[str, Any] = {}
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if name in named:
            raise ValueError(f"{name}: expected one leaf of this name, found two")
        named[name] = leaf
    return named


def _kind(leaf: Any) -> str | None:
    return None if leaf is None else f"{leaf.dtype} {leaf.shape}"


def _placed(array: np.ndarray, like: Array) -> jax.Array:
    """The array with the sharding of `like`, over all processes."""
    if not isinstance(like, jax.Array):
        return jnp.asarray(array)
    return jax.make_array_from_callback(array.shape, like.sharding, lambda place: array[place])


def _with_raw_key(state: State) -> State:
    # Files hold arrays of numbers only, not typed keys.
    return state._replace(key=jax.random.key_data(state.key))


def _not_written(checkpoints: Any, error: Exception) -> OSError:
    return OSError(f"{checkpoints.directory}: a checkpoint could not be written ({_line(error)})")


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
