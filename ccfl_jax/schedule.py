"""Schedule: who fills each slot of the server's buffer, how stale, after how much local work.

Everything that makes a run client-centric is laid down in these arrays before training starts, so a
schedule can be drawn, saved, inspected and replayed under another server optimiser.
"""

import hashlib
import os
from typing import NamedTuple

import numpy as np

from ccfl_jax.folder import write_whole
from ccfl_jax.npz import read_npz

_FIELDS = {"client": np.int32, "staleness": np.int32, "work": np.int32, "present": np.bool_}
# One generator each: changing the delays or the work must not move the cohorts.
_CLIENT_STREAM, _STALENESS_STREAM, _WORK_STREAM = range(3)


class Schedule(NamedTuple):
    """The decisions of a run, NumPy arrays `[rounds, slots]`.

    Attributes:
        client: int32, the client in the slot, 0 <= client < num_clients.
        staleness: int32, s: it started from x_{t-s} in round t, 0 <= s <= t.
        work: int32, local epochs or local steps (the round function says which); 0 is no work.
        present: bool, whether the slot holds an upload at all.
        time: float64 `[rounds]`, when each round ended on a virtual clock, or None.
    """

    client: np.ndarray
    staleness: np.ndarray
    work: np.ndarray
    present: np.ndarray
    time: np.ndarray | None = None

    def rounds(self, start: int, stop: int) -> "Schedule":
        """The piece of rounds start <= t < stop; it has to be run from a state at round `start`.

        Raises:
            ValueError: unless 0 <= start <= stop <= number of rounds.
        """
        total = len(self.client)
        if not 0 <= start <= stop <= total:
            raise ValueError(
                f"rounds: found start {start}, stop {stop}, legal: 0 <= start <= stop <= {total}"
            )
        return Schedule(*(None if a is None else a[start:stop] for a in self))

    def save(self, path: str | os.PathLike) -> None:
        """Writes the arrays to `path` as npz, under exactly that name."""
        arrays = {name: a for name, a in self._asdict().items() if a is not None}
        write_whole(path, lambda file: np.savez_compressed(file, **arrays))

    def digest(self) -> str:
        """SHA-256 of who, how stale, how much work and whether present, as hexadecimal digits."""
        total = hashlib.sha256(repr(np.shape(self.client)).encode())
        for name, dtype in _FIELDS.items():
            total.update(np.ascontiguousarray(getattr(self, name), dtype))
        return total.hexdigest()

    @staticmethod
    def load(path: str | os.PathLike) -> "Schedule":
        """Reads what `save` wrote; never unpickles.

        The file is not trusted: each array's header is read before its numbers, and all arrays
        together may unpack to 2^31 bytes.

        Raises:
            OSError: if there is no such file, or it cannot be read.
            ValueError: if it is not such a file, or its arrays do not fit together.
        """
        place = f"schedule file {os.fspath(path)}"
        try:
            arrays = read_npz(path, [*_FIELDS], ["time"])
            Schedule(**arrays).check()
        except OSError as error:
            raise type(error)(f"{place}: {error.strerror or error}") from None
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
        dtypes = {**_FIELDS, "time": np.float64}
        return Schedule(**{name: a.astype(dtypes[name]) for name, a in arrays.items()})

    def check(self) -> None:
        """Refuses arrays that cannot be a schedule, whatever the data and the history.

        Raises:
            ValueError: for a shape, dtype or value that is not as the class describes it.
        """
        shape = np.shape(self.client)
        if len(shape) != 2:
            raise ValueError(f"client: found shape {shape}, legal: [rounds, slots]")
        for name, dtype in _FIELDS.items():
            array = np.asarray(getattr(self, name))
            kind = "bool" if dtype is np.bool_ else "integers"
            if array.shape != shape or array.dtype.kind not in ("b" if kind == "bool" else "iu"):
                raise ValueError(
                    f"{name}: found {array.dtype} {array.shape}, legal: {kind} {shape} like client"
                )
            if kind == "integers" and array.size and not 0 <= array.min() <= array.max() < 2**31:
                raise ValueError(
                    f"{name}: found {array.min()} to {array.max()}, legal: 0 to {2**31 - 1}"
                )
        if self.time is not None:
            time = np.asarray(self.time)
            if time.shape != shape[:1] or time.dtype.kind not in "fiu":
                raise ValueError(
                    f"time: found {time.dtype} {time.shape}, legal: numbers {shape[:1]}"
                )
            if not np.isfinite(time).all():
                raise ValueError("time: found a number that is not finite, legal: finite ones")

    def stats(self, num_clients: int, steps: np.ndarray | None = None) -> dict[str, object]:
        r"""What the schedule asks for, over present slots with work.

        With :math:`K_{t,i}` the local steps and S_t the counted slots of round t, averaged over the
        rounds that have any (the theorem's constants, section 4 of the paper; its appendix drops
        the 1/m of the third):

        .. math:: \phi_1 = \text{mean}_t \frac{1}{|S_t|}\sum K_{t,i}, \quad
                  \phi_2 = \text{mean}_t \frac{1}{|S_t|}\sum K_{t,i}^2, \quad
                  \phi_3 = \text{mean}_t \frac{1}{|S_t|}\sum \frac{1}{K_{t,i}}

        Args:
            num_clients: n; every client id must be below it.
            steps: `[rounds, slots]`, the local steps of each slot (`info.steps` of a run). Needed
                for the theorem's constants where `work` counts epochs; without it they are in units
                of work.

        Returns:
            `participation` int64 `[num_clients]`, slots filled by each client; `staleness` int64
            `[max + 1]`, how often each staleness occurs; `phi_1`, `phi_2`, `phi_3` floats (nan
            without any work).

        Raises:
            ValueError: for a client id outside 0..num_clients-1, or steps of another shape.
        """
        check_clients(self, num_clients)
        work = np.asarray(self.work if steps is None else steps, np.float64)
        if work.shape != self.work.shape:
            raise ValueError(f"steps: found shape {work.shape}, legal: {self.work.shape}")
        counted = self.present & (work > 0)
        rounds = counted.any(axis=1)
        size = counted.sum(axis=1)[rounds]
        k = np.where(counted, work, 1.0)[rounds]
        means = [
            np.where(counted[rounds], term, 0.0).sum(axis=1) / size for term in (k, k**2, 1.0 / k)
        ]
        phi = [float(mean.mean()) if mean.size else float("nan") for mean in means]
        return {
            "participation": np.bincount(self.client[counted], minlength=num_clients),
            "staleness": np.bincount(self.staleness[counted], minlength=1),
            "phi_1": phi[0],
            "phi_2": phi[1],
            "phi_3": phi[2],
        }


def check_clients(schedule: Schedule, num_clients: int) -> None:
    """Refuses a schedule that names a client there is none of.

    Raises:
        ValueError: with the largest client id and the number of clients.
    """
    if schedule.client.size and schedule.client.max() >= num_clients:
        raise ValueError(
            f"schedule: found client {schedule.client.max()}, legal: 0 to {num_clients - 1} "
            f"({num_clients} clients)"
        )


def random_schedule(
    seed: int,
    num_rounds: int,
    num_clients: int,
    buffer_size: int = 5,
    max_delay: int = 5,
    local_work: int = 3,
    randomness: float = 2,
) -> Schedule:
    """The paper's random model (section 5.1): every slot is filled, in every round.

    * `buffer_size` (m) distinct clients, uniformly without replacement (the theorem's assumption);
    * staleness uniform over the models that exist, at most `max_delay` (tau): 0 to min(t, tau);
    * local work uniform over {1, ..., local_work * randomness} (K and R), afresh in every slot.

    Clients, staleness and work have generators of their own, and each round draws after the one
    before it: changing the delays moves no cohort, and a longer schedule begins with the shorter
    one.

    Raises:
        ValueError: for a count below its minimum, a buffer larger than the number of clients, a
            seed outside 0..2**32-1, or local_work * randomness that is not a whole number >= 1.
    """
    _check_int("seed", seed, 0, 2**32 - 1)
    _check_int("num_rounds", num_rounds, 0)
    _check_int("num_clients", num_clients, 1, 2**31 - 1)
    _check_int("buffer_size", buffer_size, 1)
    _check_int("max_delay", max_delay, 0)
    _check_int("local_work", local_work, 1)
    if buffer_size > num_clients:
        raise ValueError(
            f"buffer_size: found {buffer_size}, legal: at most the number of clients, {num_clients}"
        )
    most_work = local_work * randomness
    if not (1 <= most_work < 2**31 and most_work == int(most_work)):
        raise ValueError(
            f"local_work * randomness: found {local_work} * {randomness} = {most_work}, "
            "legal: a whole number from 1 on"
        )
    streams = [np.random.default_rng([seed, stream]) for stream in range(3)]
    clients, delays, work = (streams[k] for k in (_CLIENT_STREAM, _STALENESS_STREAM, _WORK_STREAM))
    shape = (num_rounds, buffer_size)
    client = np.zeros(shape, np.int32)
    for t in range(num_rounds):
        client[t] = clients.choice(num_clients, buffer_size, replace=False)
    oldest = np.minimum(np.arange(num_rounds), max_delay)[:, None]
    return Schedule(
        client=client,
        staleness=delays.integers(0, oldest, size=shape, endpoint=True).astype(np.int32),
        work=work.integers(1, int(most_work), size=shape, endpoint=True).astype(np.int32),
        present=np.ones(shape, np.bool_),
    )


def _check_int(name: str, value: int, least: int, most: int | None = None) -> None:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        legal = f"a whole number from {least} " + ("on" if most is None else f"to {most}")
        raise ValueError(f"{name}: found {value!r}, legal: {legal}")
