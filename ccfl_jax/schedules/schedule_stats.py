"""Statistics of who comes, how stale, and with how much work."""

import numpy as np


def statistics(
    client: np.ndarray,
    staleness: np.ndarray,
    work: np.ndarray,
    counted: np.ndarray,
    num_clients: int,
) -> dict[str, object]:
    """`Schedule.stats` of arrays `[rounds, slots]`: clients, staleness, steps, what counts."""
    visits = np.bincount(client[counted], minlength=num_clients)
    stale = np.bincount(staleness[counted], minlength=1)
    # Each client once a round, without an array of rounds times clients.
    ordered = np.sort(np.where(counted, client.astype(np.int64), -1), axis=1)
    first = (ordered >= 0) & (np.diff(ordered, axis=1, prepend=-1) != 0)
    included = np.bincount(ordered[first], minlength=num_clients)
    return {
        "participation": visits,
        "inclusion": _ratio(included, len(counted)),
        "effective_clients": float(_ratio(visits.sum() ** 2, (visits**2).sum())),
        "staleness": stale,
        "tau_max": len(stale) - 1,
        "tau_avg": float(_ratio(stale @ np.arange(len(stale)), stale.sum())),
        **_work_constants(work, counted),
    }


def _work_constants(work: np.ndarray, counted: np.ndarray) -> dict[str, float]:
    """phi_1, phi_2 and phi_3 of `Schedule.stats`."""
    rounds = counted.any(axis=1)
    size = counted.sum(axis=1)[rounds]
    k = np.where(counted, work, 1.0)[rounds]
    means = [np.where(counted[rounds], term, 0.0).sum(axis=1) / size for term in (k, k**2, 1.0 / k)]
    return {
        f"phi_{i}": float(mean.mean()) if mean.size else float("nan")
        for i, mean in enumerate(means, start=1)
    }


def _ratio(total: np.ndarray, count: int) -> np.ndarray:
    """total / count, nan where the count is 0."""
    return np.asarray(total) / count if count else np.full(np.shape(total), np.nan)
