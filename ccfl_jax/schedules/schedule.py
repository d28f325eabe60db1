"""Schedule: which client fills each slot of the server's buffer, how stale, with how much work.

All that makes a run client-centric is in these arrays before training starts, so a schedule can be
drawn, saved, inspected and run again with another server optimiser.
"""

import dataclasses
import hashlib
import os
from typing import Any, get_args

import numpy as np
from jax.tree_util import register_dataclass

from ccfl_jax.algorithm.types import WorkUnit
from ccfl_jax.checks import check_whole, is_whole, naming, unmasked
from ccfl_jax.data.arrays import native
from ccfl_jax.io.files import write_whole
from ccfl_jax.io.npz import read_npz
from ccfl_jax.schedules import history_plan, memory_plan
from ccfl_jax.schedules.schedule_stats import statistics

_FIELDS = {"client": np.int32, "staleness": np.int32, "work": np.int32, "present": np.bool_}
_ARRAYS = (*_FIELDS, "time", "read", "write", "recall", "store")


@register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Schedule:
    """The decisions of a run, NumPy arrays `[rounds, slots]`; a pytree of its arrays.

    Attributes:
        client: int32, the client in the slot, 0 <= client < num_clients.
        staleness: int32, s: it started from x_{t-s} in round t, 0 <= s <= t.
        work: int32, local epochs or local steps, as `work_unit` says; 0 is no work.
        present: bool, whether the slot holds an upload at all.
        time: float64 `[rounds]`, seconds, when each round ended on a virtual clock, or None.
        read: int32, the history slot of the model that the slot starts from, as `planned` gives it;
            None where the history is a ring.
        write: int32 `[rounds]`, the history slot that x_{t+1} goes to; one past the last drops it.
        num_clients: how many clients it was made for, or None.
        work_unit: what `work` counts, "epochs" or "steps"; None leaves it to `build_round`.
        first_round: of a piece that `rounds` cut, the round t of its row 0, which alone may be run
            next from a state before round t; None: any.
        recall: int32, the row of what the slot's client remembers (`remembered`); None: its own.
        store: int32, the row that what it then remembers goes to; one past the last drops it.
        rows: how many rows that plan has, which a state of it has too.

    Examples:
        >>> schedule = ccfl.random_schedule(seed=0, num_rounds=100, num_clients=30, max_delay=5)
        >>> schedule.num_rounds, schedule.num_slots, int(schedule.staleness.max())
        (100, 5, 5)
        >>> print(schedule.client[7], schedule.staleness[7], schedule.work[7])  # round 7
        [16 10 23  3 21] [0 0 2 3 4] [3 4 3 5 2]
        >>> round(schedule.stats(num_clients=30)["tau_avg"], 1)
        2.5
    """

    client: np.ndarray
    staleness: np.ndarray
    work: np.ndarray
    present: np.ndarray
    time: np.ndarray | None = None
    read: np.ndarray | None = None
    write: np.ndarray | None = None
    # Static, not leaves, so that schedules can be stacked and indexed as trees.
    num_clients: int | None = dataclasses.field(default=None, metadata={"static": True})
    work_unit: WorkUnit | None = dataclasses.field(default=None, metadata={"static": True})
    first_round: int | None = dataclasses.field(default=None, metadata={"static": True})
    recall: np.ndarray | None = None
    store: np.ndarray | None = None
    rows: int | None = dataclasses.field(default=None, metadata={"static": True})

    @property
    def num_rounds(self) -> int:
        """The number of rounds."""
        return np.shape(self.client)[0]

    @property
    def num_slots(self) -> int:
        """The size of the server's buffer, m."""
        return np.shape(self.client)[-1]

    def replace(self, **changes: Any) -> "Schedule":
        """The same with other fields, by name."""
        return dataclasses.replace(self, **changes)

    _replace = replace  # as NamedTuples, such as State, have it

    def rounds(self, start: int, stop: int) -> "Schedule":
        """The piece of rounds start <= t < stop, to be run from a state before round `start`.

        Raises:
            ValueError: unless 0 <= start <= stop <= number of rounds.
        """
        total = self.num_rounds
        if not (is_whole(start) and is_whole(stop) and 0 <= start <= stop <= total):
            raise ValueError(
                f"rounds: expected 0 <= start <= stop <= {total}, found start {start}, stop {stop}"
            )
        whole = {name: getattr(self, name) for name in _ARRAYS}
        piece = {n: a[start:stop] for n, a in whole.items() if a is not None}
        return self.replace(**piece, first_round=(self.first_round or 0) + int(start))

    def history_slots(self) -> int:
        """The number of history slots that `planned` needs: the most models kept at once.

        Raises:
            ValueError: as `planned`.
        """
        own = self.checked()
        return history_plan.slots_needed(history_plan.last_reads(own.staleness, own.working()))

    def planned(self) -> "Schedule":
        """The same with `read` and `write`, for a history of only the models still to be read.

        It needs `history_slots()` models where a ring needs the largest staleness + 1; the run is
        the same, bit for bit. The plan is that of the whole schedule, run from round 0: cut pieces
        from the result with `rounds`, change nothing else in it, and do not continue with a longer
        schedule, which has another plan. `history_plan.plan` makes it.

        Raises:
            ValueError: if the schedule is malformed or asks for a model before x_0.
        """
        own = self.checked()
        read, write = history_plan.plan(own.staleness, own.working())
        return own.replace(read=read, write=write)

    def memory_rows(self) -> int:
        """The number of rows that `remembered` needs, that of first visits among them.

        Raises:
            ValueError: as `remembered`.
        """
        own = self.checked()
        return memory_plan.rows_needed(own.client, own.working()) + 1

    def remembered(self) -> "Schedule":
        """The same with `recall` and `store`: memories only of clients that will come again.

        A memory is kept from its client's first visit to its last, so it takes `memory_rows()`
        rows instead of one for every client; the run is the same, bit for bit. As `planned`, the
        plan is of the whole schedule, run from round 0.

        Raises:
            ValueError: if the schedule is malformed.
        """
        own = self.checked()
        recall, store = memory_plan.plan(own.client, own.working())
        return own.replace(recall=recall, store=store, rows=self.memory_rows())

    def working(self) -> np.ndarray:
        """bool `[rounds, slots]`: the slots that train: present, and with work."""
        return np.asarray(self.present) & (np.asarray(self.work) > 0)

    def save(self, path: str | os.PathLike) -> None:
        """Writes it to `path` as npz, under exactly that name, without its plans.

        Beside the arrays the file has `num_clients` (int64) and `epochs` (bool, the unit of work),
        where they are known. A plan in a file could not be trusted, and is quick to make again.
        """
        arrays: dict[str, Any] = {n: getattr(self, n) for n in (*_FIELDS, "time", "num_clients")}
        arrays["epochs"] = None if self.work_unit is None else self.work_unit == "epochs"
        known: dict[str, Any] = {n: np.asarray(a) for n, a in arrays.items() if a is not None}
        write_whole(path, lambda file: np.savez_compressed(file, **known))

    def digest(self) -> str:
        """SHA-256 of client, staleness, work and present, as hexadecimal digits."""
        total = hashlib.sha256(repr(np.shape(self.client)).encode())
        for name, dtype in _FIELDS.items():
            total.update(np.ascontiguousarray(getattr(self, name), dtype).data)
        return total.hexdigest()

    @staticmethod
    def load(path: str | os.PathLike) -> "Schedule":
        """Reads a file that `save` wrote; never unpickles.

        The file is not trusted; its arrays may unpack to 2**31 bytes at most.

        Raises:
            OSError: if there is no such file, or it cannot be read.
            ValueError: if it is no schedule file, or its arrays do not fit together.
        """
        with naming(f"schedule file {os.fspath(path)}"):
            arrays: dict[str, Any] = read_npz(path, [*_FIELDS], ["time", "num_clients", "epochs"])
            scalars = _scalars(arrays.pop("num_clients", None), arrays.pop("epochs", None))
            Schedule(**arrays, **scalars).check()
        dtypes = {**_FIELDS, "time": np.float64}
        arrays = {name: a.astype(dtypes[name]) for name, a in arrays.items()}
        return Schedule(**arrays, **scalars)

    def checked(self) -> "Schedule":
        """The same as NumPy arrays in this machine's byte order; ValueError as `check`."""
        self.check()
        given = ((name, getattr(self, name)) for name in _ARRAYS)
        return self.replace(**{n: native(np.asarray(a)) for n, a in given if a is not None})

    def check(self) -> None:
        """Checks the arrays alone; that clients and x_{t-s} exist is checked where rounds run.

        Raises:
            ValueError: for a shape, dtype or range that is not as the class describes it.
        """
        shape = np.shape(self.client)
        if len(shape) != 2:
            raise ValueError(f"client: expected [rounds, slots], found shape {shape}")
        for pair in (("read", "write"), ("recall", "store")):
            found = [name for name in pair if getattr(self, name) is not None]
            if len(found) == 1:
                both = " and ".join(pair)
                raise ValueError(f"schedule: expected {both}, or neither, found {found[0]} alone")
        for name in _ARRAYS:
            if getattr(self, name) is not None:
                own = shape[:1] if name in ("time", "write") else shape
                _check_array(name, unmasked(name, getattr(self, name)), own)
        if self.num_clients is not None:
            check_whole("num_clients", self.num_clients, 1, 2**31 - 1)
            if np.max(self.client, initial=0) >= self.num_clients:
                raise ValueError(
                    f"num_clients: expected more than the largest client, {np.max(self.client)}, "
                    f"found {self.num_clients}"
                )
        if self.work_unit not in (None, *get_args(WorkUnit)):
            raise ValueError(f"work_unit: expected epochs, steps or None, found {self.work_unit!r}")

    def stats(self, num_clients: int, steps: np.ndarray | None = None) -> dict[str, object]:
        r"""Statistics of the present slots with work.

        With :math:`K_{t,i}` the local steps, :math:`s_{t,i}` the staleness and S_t the counted
        slots of round t, averaged over the rounds that have any (the theorem's constants, section 4
        of the paper; its appendix drops the 1/m of the third), T rounds and c_j the slots that
        client j fills:

        .. math:: \phi_1 = \text{mean}_t \frac{1}{|S_t|}\sum K_{t,i}, \quad
                  \phi_2 = \text{mean}_t \frac{1}{|S_t|}\sum K_{t,i}^2, \quad
                  \phi_3 = \text{mean}_t \frac{1}{|S_t|}\sum \frac{1}{K_{t,i}}

        .. math:: \tau_{max} = \max s_{t,i}, \quad \tau_{avg} = \text{mean}_{t,i}\, s_{t,i}, \quad
                  p_j = \frac{|\{t : j \in S_t\}|}{T}, \quad
                  n_{eff} = \frac{(\sum_j c_j)^2}{\sum_j c_j^2}

        Args:
            num_clients: n; every client id must be below it.
            steps: `[rounds, slots]`, the local steps of each slot (`info.steps` of a run). Needed
                for the theorem's constants where `work` counts epochs; without it they are in units
                of work.

        Returns:
            `participation` int64 `[num_clients]`, c; `inclusion` float64 `[num_clients]`, p, the
            share of rounds with the client in the buffer at least once (the theorem assumes m/n for
            all); `effective_clients` float, n_eff, n where all fill as many slots; `staleness`
            int64 `[tau_max + 1]`, how often each staleness occurs; `tau_max` int; `tau_avg`,
            `phi_1`, `phi_2`, `phi_3` floats. Means of nothing and n_eff without any work are nan,
            tau_max is then 0.

        Raises:
            ValueError: as `check`; for a client id outside 0..num_clients-1, a schedule made for
                another number of clients, or steps of another shape.
        """
        own = self.checked()
        check_clients(own, num_clients)
        work = unmasked("steps", own.work if steps is None else steps).astype(np.float64)
        if work.shape != own.work.shape:
            raise ValueError(f"steps: expected {own.work.shape}, found shape {work.shape}")
        counted = own.present & (work > 0)
        return statistics(own.client, own.staleness, work, counted, num_clients)


def check_clients(schedule: Schedule, num_clients: int) -> None:
    """Checks a schedule's clients against their number.

    Raises:
        ValueError: if it was made for another number of clients, or has a larger client id.
    """
    if schedule.num_clients not in (None, num_clients):
        raise ValueError(
            f"schedule: expected one of {num_clients} clients, found one of {schedule.num_clients}"
        )
    if schedule.client.size and schedule.client.max() >= num_clients:
        raise ValueError(
            f"schedule: expected clients 0 to {num_clients - 1}, found {schedule.client.max()}"
        )


def _scalars(num_clients: np.ndarray | None, epochs: np.ndarray | None) -> dict[str, Any]:
    """`num_clients` and `work_unit` of a file, as `Schedule` has them."""
    for name, value, kinds in (("num_clients", num_clients, "iu"), ("epochs", epochs, "b")):
        if value is not None and (value.shape or value.dtype.kind not in kinds):
            one = "one bool" if kinds == "b" else "one integer"
            raise ValueError(f"{name}: expected {one}, found {value.dtype} {value.shape}")
    return {
        "num_clients": None if num_clients is None else int(num_clients),
        "work_unit": None if epochs is None else "epochs" if epochs else "steps",
    }


def _check_array(name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless the array is as `Schedule` describes it."""
    kind = {"present": "bool", "time": "numbers"}.get(name, "integers")
    kinds = {"bool": "b", "numbers": "fiu", "integers": "iu"}[kind]
    if array.shape != shape or array.dtype.kind not in kinds:
        like = " like client" if array.ndim == 2 and name != "time" else ""
        raise ValueError(
            f"{name}: expected {kind} {shape}{like}, found {array.dtype} {array.shape}"
        )
    if kind == "integers" and array.size and not 0 <= array.min() <= array.max() < 2**31:
        raise ValueError(f"{name}: expected 0 to {2**31 - 1}, found {array.min()} to {array.max()}")
    if kind == "numbers" and not np.isfinite(array).all():
        raise ValueError(f"{name}: expected finite numbers, found {array[~np.isfinite(array)][0]}")
