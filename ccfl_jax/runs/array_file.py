"""Arrays by name, with what is said of them, as one npz file that Orbax keeps.

Orbax's own form for arrays, TensorStore's, notices no changed byte and lets go of some 20 kB less
than it took with every save; an npz file has a checksum of every member. Orbax takes most of a
second to import: so is this module imported inside functions.
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.future import CommitFutureAwaitingContractedSignals, Future

from ccfl_jax.io.npz import read_npz

_FILE, _SAID = "arrays.npz", "said"


class ArrayFileHandler(ocp.AsyncCheckpointHandler):
    """What an Orbax `CheckpointManager` saves and restores such files with."""

    async def async_save(self, directory: Path, args: "ArrayFile") -> list[Future]:
        """Returns what writes the file; the arrays must not change meanwhile."""
        writing = _write(Path(os.fspath(directory)), args)
        return [CommitFutureAwaitingContractedSignals(writing, name="array_file")]

    def save(self, directory: Path, args: "ArrayFile") -> None:
        """Writes the file at once."""
        raise NotImplementedError("array_file: expected an asynchronous save, found a synchronous one")

    def restore(self, directory: Path, args: "ArrayFile | None" = None) -> "ArrayFile":
        """What was saved.

        Raises:
            ValueError, OSError: for a file that is not whole.
        """
        del args
        path = Path(os.fspath(directory)) / _FILE
        members = read_npz(path, [_SAID], None, path.stat().st_size)
        kinds, about = json.loads(members[_SAID].tobytes())
        arrays = {name: _typed(members[name], *kind) for name, kind in kinds.items()}
        return ArrayFile(arrays, about)


@ocp.args.register_with_handler(ArrayFileHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class ArrayFile(ocp.args.CheckpointArgs):
    """What the file holds.

    Attributes:
        arrays: name -> a NumPy array of any of JAX's dtypes.
        about: strict JSON.
    """

    arrays: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    about: Any = None


async def _write(folder: Path, file: ArrayFile) -> None:
    if jax.process_index() > 0:
        return
    kinds = {name: (str(a.dtype), a.shape) for name, a in file.arrays.items()}
    said = json.dumps((kinds, file.about), allow_nan=False).encode()
    # As bytes: npz knows no bfloat16.
    members = {name: np.ravel(a).view(np.uint8) for name, a in file.arrays.items()}
    with open(folder / _FILE, "wb") as opened:
        np.savez(opened, **{_SAID: np.frombuffer(said, np.uint8)}, **members)
        opened.flush()
        os.fsync(opened.fileno())


def _typed(data: np.ndarray, dtype: str, shape: list[int]) -> np.ndarray:
    return data.view(jnp.dtype(dtype)).reshape(shape)
