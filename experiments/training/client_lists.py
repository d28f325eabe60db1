"""The rows of clients in lists: to train on, to test each client on, and of unseen clients."""

from collections.abc import Sequence

import numpy as np

# The streams of the unseen clients and of the clients' own test rows.
_UNSEEN_STREAM, _TEST_STREAM = 0x554E5345, 0x54455354

Lists = Sequence[np.ndarray]  # row numbers of each client
Owners = tuple[np.ndarray, np.ndarray]  # those one client after another, and the start of each's


def without_unseen(lists: Lists, count: int, seed: int) -> tuple[Lists, Lists]:
    """The lists without those of `count` clients, and these; both keep their order."""
    unseen = np.random.default_rng([seed, _UNSEEN_STREAM]).permutation(len(lists))[:count]
    seen = np.delete(np.arange(len(lists)), unseen)
    return [lists[k] for k in seen], [lists[k] for k in np.sort(unseen)]


def split(lists: Lists, share: float, seed: int) -> tuple[Lists, Lists]:
    """Each client's rows to train on, and its test rows; both keep their order.

    Of n rows `share` n are tested, rounded, but at least one and at most n - 1; a client with fewer
    than two rows has no test row.
    """
    draw = np.random.default_rng([seed, _TEST_STREAM])
    train, test = [], []
    for rows in lists:
        wanted = max(round(share * len(rows)), 1)
        tested = np.zeros(len(rows), bool)
        tested[draw.permutation(len(rows))[: min(wanted, max(len(rows) - 1, 0))]] = True
        train.append(rows[~tested])
        test.append(rows[tested])
    return train, test


def owners(lists: Lists) -> Owners:
    """Lists in one array, and the start of each client's."""
    return np.concatenate(lists), np.cumsum([0, *map(len, lists)])
