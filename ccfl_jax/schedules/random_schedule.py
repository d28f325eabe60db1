"""The paper's random schedule: cohorts of all clients, or of those available, delays and work."""

from collections.abc import Iterable
from itertools import repeat

import numpy as np

from ccfl_jax.checks import check_seed, check_whole, check_work, unmasked
from ccfl_jax.schedules.schedule import Schedule

# One generator each: other delays or work must not change the cohorts.
_CLIENT_STREAM, _STALENESS_STREAM, _WORK_STREAM = range(3)


def random_schedule(
    seed: int,
    num_rounds: int,
    num_clients: int,
    buffer_size: int = 5,
    max_delay: int = 5,
    local_work: int = 3,
    randomness: float = 2,
    available: Iterable[np.ndarray] | None = None,
) -> Schedule:
    """The paper's random model (section 5.1): every slot is filled, in every round.

    * `buffer_size` (m) distinct clients, uniformly without replacement (the theorem's assumption);
    * staleness uniform over the models that exist, at most `max_delay` (tau): 0 to min(t, tau);
    * local work uniform over {1, ..., local_work * randomness} (K and R), drawn for every slot.

    The same work K for all is `schedule.replace(work=np.full_like(schedule.work, K))`.

    Clients, staleness and work have their own generators, which draw round by round: other delays
    do not change the cohorts, and a longer schedule begins with the shorter one.

    Args:
        available: a departure from the paper: a bool `[num_clients]` for each round, the clients
            that can take part (`availability.masks`). The cohort is drawn from those; if they are
            fewer than m, the last slots are absent, with client, staleness and work 0. Masks that
            are always true give the paper's schedule, and no mask changes the delay or work of a
            filled slot.

    Raises:
        ValueError: for a count below its minimum, a buffer larger than the number of clients, a
            seed outside 0..2**32-1, local_work * randomness that is not an integer >= 1, or
            masks that are too few or no bool `[num_clients]`.

    Examples:
        >>> schedule = ccfl.random_schedule(seed=0, num_rounds=500, num_clients=100, buffer_size=5)
        >>> schedule.client.shape, int(schedule.work.min()), int(schedule.work.max())
        ((500, 5), 1, 6)
        >>> half = [
        ...     np.arange(100) < 50
        ... ] * 500  # or `ccfl.availability.masks`: who is there in each round
        >>> int(ccfl.random_schedule(0, 500, 100, available=half).client.max())
        49
    """
    check_seed(seed)
    check_whole("num_rounds", num_rounds, 0)
    check_whole("num_clients", num_clients, 1, 2**31 - 1)
    check_whole("buffer_size", buffer_size, 1)
    check_whole("max_delay", max_delay, 0)
    check_whole("local_work", local_work, 1)
    if buffer_size > num_clients:
        raise ValueError(
            f"buffer_size: expected at most the number of clients, {num_clients}, found "
            f"{buffer_size}"
        )
    most_work = check_work(local_work, randomness)
    streams = [np.random.default_rng([seed, stream]) for stream in range(3)]
    clients, delays, work = (streams[k] for k in (_CLIENT_STREAM, _STALENESS_STREAM, _WORK_STREAM))
    shape = (num_rounds, buffer_size)
    client, present = _draw_cohorts(clients, shape, num_clients, available)
    oldest = np.minimum(np.arange(num_rounds), max_delay)[:, None]
    staleness = delays.integers(0, oldest, size=shape, endpoint=True).astype(np.int32)
    amounts = work.integers(1, most_work, size=shape, endpoint=True).astype(np.int32)
    return Schedule(
        client=client,
        staleness=np.where(present, staleness, 0),
        work=np.where(present, amounts, 0),
        present=present,
        num_clients=int(num_clients),
    )


def _draw_cohorts(
    rng: np.random.Generator,
    shape: tuple[int, int],
    num_clients: int,
    available: Iterable[np.ndarray] | None,
) -> tuple[np.ndarray, np.ndarray]:
    """`client` int32 and `present` bool `[rounds, slots]`, distinct clients in every round."""
    (rounds, slots), drawn = shape, 0
    client, present = np.zeros(shape, np.int32), np.zeros(shape, np.bool_)
    masks = repeat(None, rounds) if available is None else available
    for t, mask in zip(range(rounds), masks, strict=False):
        ids, size = num_clients, slots
        if mask is not None:
            mask = unmasked(f"available in round {t}", mask)
            if mask.shape != (num_clients,) or mask.dtype != bool:
                raise ValueError(
                    f"available: expected bool ({num_clients},), found {mask.dtype} {mask.shape} "
                    f"in round {t}"
                )
            ids = np.flatnonzero(mask)  # draws from all ids equal draws from their number
            size = min(slots, len(ids))
        client[t, :size] = rng.choice(ids, size, replace=False)
        present[t, :size] = True
        drawn = t + 1
    if drawn < rounds:
        raise ValueError(f"available: expected a mask for each of {rounds} rounds, found {drawn}")
    return client, present
