"""The provenance of a result: what it depends on beside its settings, and the comparison of it."""

import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import flax
import jax
import numpy as np

from ccfl_jax.checks import one_line
from ccfl_jax.data.arrays import native
from ccfl_jax.io.files import as_json, replace_file
from ccfl_jax.runs.run_config import version

PROVENANCE = "provenance.json"

# What draws first models and dropout, and what steps.
_PACKAGES = ("jax", "ccfl_jax", "flax", "optax")
# JAX's switches that change what is drawn or how it is rounded.
_SWITCHES = (
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_random_seed_offset",
    "jax_enable_x64",
    "jax_default_matmul_precision",
)


def of_process() -> dict[str, str]:
    """name -> value of the versions and switches of this process that decide a result.

    Devices are none of them: a run may be resumed on others, and agrees to rounding.
    """
    found = {name: str(version(name)) for name in _PACKAGES}
    found |= {name.removeprefix("jax_"): str(getattr(jax.config, name)) for name in _SWITCHES}
    # How Flax makes the keys of first models and of dropout.
    name = "flax_fix_rng_separator"
    return {**found, name: str(getattr(flax.config, name, False))}


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Hexadecimal digits for the names, dtypes, shapes and numbers of some arrays."""
    found = hashlib.blake2b(digest_size=16)
    for name, array in sorted(arrays.items()):
        array = np.ascontiguousarray(native(array))
        found.update(f"{name} {array.dtype.str} {array.shape}".encode())
        found.update(array.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def check(
    folder: str | os.PathLike, found: Mapping[str, str], accepted: Collection[str] = ()
) -> None:
    """Compares a provenance with that of a folder's results.

    Args:
        folder: of a run or a sweep; without a file of a provenance there is nothing to compare.
        found: name -> value; a name may end with what it is of, as in "clients[seed=1]".
        accepted: names, without that, whose values may have changed.

    Raises:
        ValueError: with every other name whose value has changed; for unknown names in `accepted`.
    """
    _check_known(accepted, found)
    check_same(Path(folder) / PROVENANCE, read(folder), found, accepted)


def write(folder: str | os.PathLike, found: Mapping[str, str]) -> None:
    """Writes a provenance beside a folder's results; names that it lacks keep their values."""
    text = json.dumps({**read(folder), **found}, indent=2) + "\n"
    replace_file(Path(folder) / PROVENANCE, text)


def check_beside(folders: Sequence[str | os.PathLike], accepted: Collection[str] = ()) -> None:
    """Raises ValueError for folders whose results cannot be put beside each other.

    Versions, switches and data sets of one name have to agree; clients and schedules may be others.
    """
    before: dict[str, str] = {}
    for folder in folders:
        own = "clients", "schedule"
        found = {n: v for n, v in read(folder).items() if _kind(n) not in own}
        check_same(folder, before, found, accepted)
        before |= found
    _check_known(accepted, before)


def read(folder: str | os.PathLike) -> dict[str, str]:
    """The provenance of a folder's results; empty where none is written.

    Raises:
        ValueError: for a file that holds no provenance.
    """
    path = Path(folder) / PROVENANCE
    if not path.is_file():
        return {}
    found = as_json(path.read_bytes(), path)
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise ValueError(f"{path}: expected texts by name, found {one_line(str(found), 80)}")
    return found


def check_same(
    place: str | os.PathLike,
    before: Mapping[str, str],
    found: Mapping[str, str],
    accepted: Collection[str] = (),
) -> None:
    """Raises ValueError for names of both whose values differ, except those in `accepted`."""
    differing = [
        f"{name} {before[name]} -> {found[name]}"
        for name in sorted(before.keys() & found.keys())
        if before[name] != found[name] and _kind(name) not in accepted
    ]
    if differing:
        raise ValueError(
            f"{place}: expected results of one provenance (or --accept_changed=NAME), found "
            f"{', '.join(differing)}"
        )


def _kind(name: str) -> str:
    """A name without what it is of: "clients" for "clients[seed=1]"."""
    return name.partition("[")[0]


def _check_known(accepted: Collection[str], found: Mapping[str, str]) -> None:
    known = {*map(_kind, found)}
    unknown = sorted({*accepted} - known)
    if unknown:
        raise ValueError(
            f"--accept_changed: expected some of {', '.join(sorted(known))}, found "
            f"{', '.join(unknown)}"
        )
