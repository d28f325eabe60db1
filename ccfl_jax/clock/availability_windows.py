"""Availability windows: a trace of when each client is available, replayed periodically."""

from typing import NamedTuple

import numpy as np

from ccfl_jax.checks import unmasked
from ccfl_jax.clock.availability_events import LONGEST, SHORTEST, per_client


class Windows(NamedTuple):
    """A trace: client c is available at t if t mod period[c] is in one of its [start, stop).

    Attributes:
        client: integers [windows], each 0..clients-1, in any order; a client may have no window.
        start: [windows], seconds, 0 <= start.
        stop: [windows], seconds, start < stop <= period[client].
        period: [clients], seconds, 0.001 to 1e12: a client's trace repeats after it.
    """

    client: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    period: np.ndarray


def check_windows(trace: Windows) -> Windows:
    """The checked trace, sorted by client and start, with float64 seconds.

    Raises:
        ValueError: shapes, types or values are not as `Windows` describes; there is no window at
            all; a window, or the gap between two of a client, is shorter than 0.001 s (a gap may be
            0); two windows of a client overlap.
    """
    client, start, stop, period = (unmasked(n, a) for n, a in trace._asdict().items())
    if not (client.ndim == period.ndim == 1 and client.shape == start.shape == stop.shape):
        raise ValueError(
            "windows: expected [windows] for client, start and stop, [clients] for period, found "
            f"shapes {[np.shape(array) for array in trace]}"
        )
    if client.dtype.kind not in "iu" or not client.size:
        raise ValueError(f"client: expected some integers, found {client.dtype} {client.shape}")
    if client.min() < 0 or client.max() >= len(period):
        raise ValueError(
            f"client: expected 0 to {len(period) - 1}, found {client.min()} to {client.max()}"
        )
    period = per_client("period", period, len(period), SHORTEST, LONGEST)
    start = per_client("start", start, len(start), 0.0, LONGEST)
    stop = per_client("stop", stop, len(stop), 0.0, LONGEST)
    order = np.lexsort((start, client))
    c, a, b = client[order].astype(np.int64), start[order], stop[order]
    first = np.append(True, c[1:] != c[:-1])
    last = np.roll(first, -1)
    gap = np.append(a[1:], 0.0) - b
    gap[last] = period[c[last]] - b[last] + a[first]
    late = (b > period[c]) | (b - a < SHORTEST)
    wrong = np.flatnonzero(late | ((gap != 0) & (gap < SHORTEST)))
    if wrong.size:
        k = wrong[0]
        raise ValueError(
            f"window of client {c[k]}: expected within the period, windows of at least {SHORTEST} "
            f"s, gaps of 0 or as much, found [{a[k]}, {b[k]}) of a period of {period[c[k]]}, with "
            f"{gap[k]} to the next"
        )
    return Windows(c, a, b, period)


def repeating(trace: Windows) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The first two arguments of `replay`, from a trace that `check_windows` returned."""
    client, start, stop, period = trace
    # Where windows meet, at the end of the period too, nothing changes.
    meets_next = np.append((client[1:] == client[:-1]) & (start[1:] == stop[:-1]), False)
    initially, to_the_end = np.zeros((2, len(period)), np.bool_)
    initially[client[start == 0]] = True
    to_the_end[client[stop == period[client]]] = True
    wraps = (initially & to_the_end)[client]
    comes = ~np.roll(meets_next, 1) & ~((start == 0) & wraps)
    goes = ~meets_next & ~((stop == period[client]) & wraps)
    comes_at = np.where(start == 0, period[client], start)[comes]
    who = np.append(client[comes], client[goes])
    what = np.repeat([True, False], [comes.sum(), goes.sum()])
    return initially, (who, np.append(comes_at, stop[goes]), what)
