"""The room of a device for training data, and the pieces that they are streamed in."""

import jax
import numpy as np
from jax.experimental import multihost_utils

import ccfl_jax as ccfl
from ccfl_jax.engine import streaming

from ..config.run_flags import Config

_UNKNOWN = 2**50  # bytes of a device that tells no limit


def memory(config: Config, data: ccfl.FederatedData, mesh: jax.sharding.Mesh) -> int | None:
    """Bytes of each device for streamed training data, or None where the data fit."""
    if config.data_memory is not None:
        megabytes = config.data_memory
    elif mesh.devices.flat[0].platform == "cpu":
        return None
    else:
        stats = [device.memory_stats() or {} for device in mesh.local_devices]
        # The other half is for models, their history and the activations of a step.
        half = min(stat.get("bytes_limit", _UNKNOWN) for stat in stats) // 2
        # The same in all processes, as the pieces must be; whole MB fit the 32 bits sent.
        megabytes = multihost_utils.process_allgather(np.asarray(half // 10**6)).min()
    room = int(megabytes * 1e6)
    return room if sum(leaf.nbytes for leaf in jax.tree.leaves(data)) > room else None


def cut(
    left: ccfl.Schedule, data: ccfl.FederatedData, memory: int | None
) -> streaming.Pieces | None:
    """The pieces of the rounds `left`, where their data are streamed."""
    if memory is None:
        return None
    try:
        return streaming.cut(left, data, memory)
    except ValueError as error:
        raise ValueError(f"--data_{error}") from None  # --data_memory: found ...
