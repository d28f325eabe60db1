"""More data than a device holds: they stay on the host, and what comes next is sent ahead."""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import jax
import numpy as np

from ccfl_jax.data import FederatedData
from ccfl_jax.data.federated_data import held_dtype
from ccfl_jax.schedules.schedule import Schedule, check_clients


class Pieces(NamedTuple):
    """How a schedule is cut, so that the samples of a piece fit half the memory.

    Attributes:
        starts: the first round of every piece, then the number of rounds.
        rows: rows of each piece's data, those of the largest.
        nbytes: bytes of each piece's data on a device.
    """

    starts: list[int]
    rows: int
    nbytes: int


def stream_rounds(
    schedule: Schedule,
    data: FederatedData,
    memory: int,
    put: Callable[[FederatedData], FederatedData] = jax.device_put,
) -> Iterator[tuple[Schedule, FederatedData]]:
    """Cuts a run into pieces whose samples fit a device, and sends each one ahead of its rounds.

        data = FederatedData.from_offsets(arrays, indices, offsets)  # memory-mapped, if need be
        for piece, samples in stream_rounds(schedule, data, memory=8 * 10**9):
            state, info = run_rounds(round_fn, state, piece, samples)

    A piece holds the samples of all clients that its rounds ask for, each client once, and is as
    long as half the memory allows. The next piece is gathered and sent by one background thread
    while the caller works on this one; what the caller keeps of earlier ones takes room beyond
    that. All pieces have one shape, so the round is compiled once, and clients keep their numbers,
    so the results are those of an unstreamed run. The thread ends with the generator.

    Args:
        schedule: arrays `[rounds, slots]`, planned or not. Absent slots and those without work need
            no samples.
        data: on the host.
        memory: bytes of a device for two pieces: the one in use and the one sent ahead.
        put: sends the data of a piece; called in the thread.

    Returns:
        A generator of pieces of the schedule, in order, each with its data.

    Raises:
        ValueError: at once, as `cut`.
    """
    return send(cut(schedule, data, memory), schedule, data, put)


def send(
    pieces: Pieces,
    schedule: Schedule,
    data: FederatedData,
    put: Callable[[FederatedData], FederatedData] = jax.device_put,
) -> Iterator[tuple[Schedule, FederatedData]]:
    """`stream_rounds` of a schedule that `cut` has cut into these pieces."""
    wide = jax.config.jax_enable_x64  # set by a `with`, it would not reach the thread

    def prepare(span: tuple[int, int] | None) -> FederatedData | None:
        if span is None:
            return None
        with jax.enable_x64(wide):
            piece = schedule.rounds(*span)
            return put(data.only(piece.client[piece.working()], pieces.rows))

    def generate() -> Iterator[tuple[Schedule, FederatedData]]:
        with ThreadPoolExecutor(1, "stream_rounds") as thread:
            spans = [*pairwise(pieces.starts), None]
            ahead = thread.submit(prepare, spans[0])
            for span, following in pairwise(spans):
                samples = ahead.result()
                ahead = thread.submit(prepare, following)
                yield schedule.rounds(*span), samples
                del samples

    return generate()


def cut(schedule: Schedule, data: FederatedData, memory: int) -> Pieces:
    """The pieces of `stream_rounds`: from the first round on, each as long as it fits.

    Raises:
        ValueError: if the schedule is malformed or names a client there is none of; if memory is
            not an integer, or half of it is less than the samples of one round take.
    """
    schedule.check()
    check_clients(schedule, len(data))
    if isinstance(memory, bool) or not isinstance(memory, int | np.integer):
        raise ValueError(f"memory: expected an integer, in bytes, found {memory!r}")
    sizes = np.diff(np.asarray(data.offsets))
    row_bytes = 4 + sum(
        int(np.prod(a.shape[1:])) * held_dtype(a).itemsize for a in data.arrays.values()
    )
    fixed = 4 * (len(data) + 1)
    room = min((memory // 2 - fixed) // row_bytes, 2**31 - 1)  # rows; they are counted in int32
    starts, held, most = [0], 0, 1
    last_round = np.full(len(data), -1)  # in which each client was last asked for
    for t, (clients, needed) in enumerate(zip(schedule.client, schedule.working(), strict=True)):
        clients = np.unique(clients[needed])
        own = int(sizes[clients].sum())
        if max(own, 1) > room:
            alone = fixed + max(own, 1) * row_bytes
            raise ValueError(
                f"memory: expected at least {2 * alone} ({math.ceil(alone / 50) / 1e4} MB), twice "
                f"the {alone} that round {t} takes, found {memory} bytes"
            )
        new = int(sizes[clients[last_round[clients] < starts[-1]]].sum())
        if held + new > room:
            starts.append(t)
            held, new = 0, own
        held += new
        last_round[clients] = t
        most = max(most, held)
    rounds = schedule.num_rounds
    return Pieces([*starts, rounds] if rounds else [0], most, fixed + most * row_bytes)
