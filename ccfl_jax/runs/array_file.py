"""Named arrays and a JSON value as one npz file, a checkpoint item for Orbax.

Orbax's own format for arrays, TensorStore's, does not notice a changed byte and leaks about 20 kB
with every save; an npz file has a checksum of every member. Orbax takes most of a second to import,
so this module is imported inside functions.
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
    """Saves and restores such files for an Orbax `CheckpointManager`."""

    async def async_save(self, directory: Path, args: "ArrayFile") -> list[Future]:
        """Returns the future that writes the file; the arrays must not change until it is done."""
        writing = _write(Path(os.fspath(directory)), args)
        return [CommitFutureAwaitingContractedSignals(writing, name="array_file")]

    def save(self, directory: Path, args: "ArrayFile") -> None:
        """Not needed: the manager saves asynchronously."""
        raise NotImplementedError(
            "array_file: expected an asynchronous save, found a synchronous one"
        )

    def restore(self, directory: Path, args: "ArrayFile | None" = None) -> "ArrayFile":
        """The saved file.

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
    """The content of the file.

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
    members: dict[str, Any] = {n: np.ravel(a).view(np.uint8) for n, a in file.arrays.items()}
    members[_SAID] = np.frombuffer(said, np.uint8)
    with open(folder / _FILE, "wb") as opened:
        np.savez(opened, **members)
        opened.flush()
        os.fsync(opened.fileno())


def _typed(data: np.ndarray, dtype: str, shape: list[int]) -> np.ndarray:
    return data.view(jnp.dtype(dtype)).reshape(shape)
