"""Streaming: data larger than a device's memory stay on the host and are sent ahead in pieces."""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, zip_longest
from typing import NamedTuple

import jax
import numpy as np

from ccfl_jax.checks import check_kind, is_whole
from ccfl_jax.data import FederatedData
from ccfl_jax.data.arrays import formed, held_dtype
from ccfl_jax.schedules.schedule import Schedule, check_clients


class Pieces(NamedTuple):
    """A schedule cut into pieces whose samples fit half the memory.

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
    """Cuts a run into pieces whose samples fit a device, and sends each ahead of its rounds.

    A piece holds the samples of all clients of its rounds, each client once, and is as long as half
    the memory allows. One background thread gathers and sends the next piece while the caller runs
    this one; earlier pieces that the caller keeps need memory beyond that. All pieces have one
    shape, so the round is compiled once, and clients keep their ids, so the results are those of an
    unstreamed run. The thread ends with the generator.

    Args:
        schedule: arrays `[rounds, slots]`, planned or not; slots without work need no samples.
        data: on the host.
        memory: bytes of a device for two pieces: the one in use and the one sent ahead.
        put: sends the data of a piece; called in the thread.

    Returns:
        A generator of pieces of the schedule, in order, each with its data.

    Raises:
        ValueError: at once, as `cut`.

    Examples:
        >>> train, _, clients = ccfl.data.synthetic(num_clients=4)  # arrays may be memory-mapped
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> schedule = ccfl.random_schedule(seed=0, num_rounds=20, num_clients=4, buffer_size=2)
        >>> simulation = ccfl.simulation(task, ccfl.cc_fedams(0.05), local=0.02)
        >>> state = simulation.init(jax.random.key(0), history_length=6)
        >>> offsets = np.cumsum([0, *map(len, clients)])
        >>> data = ccfl.FederatedData.from_offsets(train, np.concatenate(clients), offsets)
        >>> pieces = []
        >>> for piece, samples in ccfl.stream_rounds(schedule, data, memory=1_700_000):  # bytes
        ...     state, info = ccfl.run_rounds(simulation.round, state, piece, samples)
        ...     pieces.append(piece.num_rounds)

        >>> int(state.round), pieces  # rounds of each
        (20, [1, 1, 2, 5, 3, 1, 1, 3, 3])
    """
    return send(cut(schedule, data, memory), schedule, data, put)


def send(
    pieces: Pieces,
    schedule: Schedule,
    data: FederatedData,
    put: Callable[[FederatedData], FederatedData] = jax.device_put,
) -> Iterator[tuple[Schedule, FederatedData]]:
    """`stream_rounds` of a schedule that `cut` has cut into these pieces."""
    wide = bool(jax.config.read("jax_enable_x64"))  # one set by a `with` does not reach the thread

    schedule = schedule.checked()

    def prepare(piece: Schedule) -> FederatedData:
        with jax.enable_x64(wide):
            return put(data.only(piece.client[piece.working()], pieces.rows))

    def generate() -> Iterator[tuple[Schedule, FederatedData]]:
        with ThreadPoolExecutor(1, "stream_rounds") as thread:
            todo = [schedule.rounds(*span) for span in pairwise(pieces.starts)]
            ahead = [thread.submit(prepare, piece) for piece in todo[:1]]
            for piece, following in zip_longest(todo, todo[1:]):
                samples = ahead.pop().result()
                if following is not None:
                    ahead.append(thread.submit(prepare, following))
                yield piece, samples
                del samples

    return generate()


def cut(schedule: Schedule, data: FederatedData, memory: int) -> Pieces:
    """The pieces of `stream_rounds`: from the first round on, each as long as fits.

    Raises:
        ValueError: if the schedule is malformed or has clients that the data do not; if memory is
            not an integer, or half of it is less than the samples of one round.
    """
    check_kind("schedule", schedule, Schedule, "a ccfl.Schedule")
    check_kind("data", data, FederatedData, "ccfl.FederatedData")
    schedule = schedule.checked()
    check_clients(schedule, len(data))
    if not is_whole(memory):
        raise ValueError(f"memory: expected an integer, in bytes, found {memory!r}")
    memory = int(memory)
    sizes = np.diff(np.asarray(data.offsets))
    row_bytes = 4 + sum(
        int(np.prod(a.shape[1:])) * held_dtype(a).itemsize for a in formed(data.arrays).values()
    )
    fixed = 4 * (len(data) + 1)
    room = min((memory // 2 - fixed) // row_bytes, 2**31 - 1)  # rows; they are counted in int32
    starts, held, most = [0], 0, 1
    last_round = np.full(len(data), -1)  # the last round of each client so far
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
