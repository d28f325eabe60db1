"""Partitioners: from labels to one list of sample numbers per client.

Every partitioner returns `num_clients` arrays int64 [n_i]. Together they hold each sample exactly
once. Each list ascends: the order within a client has no meaning, training shuffles.
"""

import math

import numpy as np

from ccfl_jax.checks import check_number, check_seed, check_whole, integer_vector

# The stream of this module's draws: no other part of a run with the same seed shares it.
_STREAM = 0x50415254


def partition_iid(labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
    """Deals the shuffled samples to the clients; sizes differ by at most one.

    Args:
        labels: integer array [N]; only N matters.
        num_clients: n. With n > N some clients are empty.
        seed: 0..2**32-1.

    Returns:
        n ascending arrays int64; the first N mod n clients hold one sample more than the others.

    Raises:
        ValueError: an argument is not as described.

    Examples:
        >>> train, _ = ccfl.load_dataset("digits")
        >>> clients = ccfl.partition_iid(train["y"], num_clients=10, seed=0)
        >>> print([len(rows) for rows in clients])
        [144, 144, 144, 144, 144, 144, 144, 143, 143, 143]
    """
    labels = integer_vector("labels", labels)
    check_whole("num_clients", num_clients, 1)
    check_seed(seed)
    order = np.random.default_rng([seed, _STREAM]).permutation(labels.size)
    return [np.sort(part) for part in np.array_split(order, num_clients)]


def partition_natural(client_ids: np.ndarray) -> list[np.ndarray]:
    """Groups the samples by the client that each one comes from.

    Args:
        client_ids: integer array [N], each in 0..clients-1. The number of clients is the highest
            one plus 1; a number in between that does not occur is an empty client.

    Returns:
        One ascending array int64 per client.

    Raises:
        ValueError: `client_ids` is empty, is not a 1-D integer array, or has a value outside
            0..2**31-1, where a schedule has its clients.

    Examples:
        >>> train, _ = ccfl.load_dataset("synthetic")
        >>> clients = ccfl.partition_natural(train["client"])
        >>> len(clients), sum(map(len, clients)) == len(train["y"])
        (100, True)
    """
    client_ids = integer_vector("client_ids", client_ids)
    if not client_ids.size or not 0 <= client_ids.min() <= client_ids.max() < 2**31:
        found = f"{client_ids.min()} to {client_ids.max()}" if client_ids.size else "none"
        raise ValueError(f"client_ids: expected at least one, 0 to {2**31 - 1}, found {found}")
    return _group(client_ids, int(client_ids.max()) + 1)


def partition_dirichlet(
    labels: np.ndarray,
    num_clients: int,
    alpha: float,
    seed: int,
    min_size: int = 10,
    by: str = "label",
) -> list[np.ndarray]:
    """Partitions with label skew: the smaller `alpha`, the fewer classes a client has.

    With N samples, n clients and N_c samples of class c:

    `by="label"` (Li, Diao, Chen and He 2022, NIID-Bench, `noniid-labeldir`): for each class,
    p ~ Dir(alpha 1_n); p_j = 0 for clients that already hold N/n samples or more; p is
    renormalised, and the shuffled class is cut at floor(cumsum(p) N_c). Sizes vary. Departures:

    * p is drawn over the clients that are still open. This is the same law (a Dirichlet vector
      restricted and renormalised is a Dirichlet vector), without 0/0 where all mass is on full
      clients.
    * The original redraws the whole split until every client has `min_size` samples. Here the
      split is drawn once; then samples move, one at a time, from the client that holds the most
      to those below `min_size`: random samples of each giver, and from as few givers as possible
      to one receiver, which keeps the skew. A split that meets the minimum is left as drawn.

    `by="client"` (Hsu, Qi and Brown 2019): each client in turn draws q ~ Dir(alpha p), p_c = C
    N_c/N for C classes, then N/n samples without replacement, the class of each from q; a class
    that runs out gets probability 0 and the others are renormalised. Sizes are equal, except that
    the first N mod n clients hold one sample more (the paper's N is a multiple of n). The last
    clients take what is left, so their labels follow q less closely. The paper calls p the prior
    over the classes and leaves its scale open; with balanced classes p is 1 here, Dir(alpha 1), as
    in the common programs, so that one `alpha` is about the same skew in both procedures. Were p
    to sum to 1, `alpha` would have to be C times as large.

    Args:
        labels: integer array [N].
        num_clients: n.
        alpha: concentration, any finite float > 0.
        seed: 0..2**32-1.
        min_size: least number of samples of a client; 0 allows empty clients.
        by: "label" or "client".

    Returns:
        n ascending arrays int64.

    Raises:
        ValueError: an argument is not as described, or n * min_size > N.

    Examples:
        >>> train, _ = ccfl.load_dataset("digits")
        >>> clients = ccfl.partition_dirichlet(train["y"], num_clients=30, alpha=0.1, seed=0)
        >>> print(np.bincount(train["y"][clients[0]], minlength=10))  # the labels of one client
        [ 0  0  2  0 50  0  0  0  0  0]
    """
    labels = integer_vector("labels", labels)
    num_clients = check_whole("num_clients", num_clients, 1)
    min_size = check_whole("min_size", min_size, 0)
    check_number("alpha", alpha, -math.inf)
    check_seed(seed)
    if alpha <= 0:
        raise ValueError(f"alpha: expected a number > 0, found {alpha!r}")
    if by not in ("label", "client"):
        raise ValueError(f"by: expected 'label', 'client', found {by!r}")
    if num_clients * min_size > labels.size:
        raise ValueError(
            f"num_clients: expected at most {labels.size // min_size}, found {num_clients} of at "
            f"least {min_size} samples (need {num_clients * min_size}, have {labels.size})"
        )
    alpha = float(alpha)
    rng = np.random.default_rng([seed, _STREAM])
    present, class_of = np.unique(labels, return_inverse=True)
    members = [rng.permutation(rows) for rows in _group(class_of, present.size)]
    if by == "label":
        owner = _top_up(rng, _cut_by_label(rng, members, num_clients, alpha), num_clients, min_size)
    else:
        owner = _draw_by_client(rng, members, num_clients, alpha)
    return _group(owner, num_clients)


def _group(owner: np.ndarray, num_groups: int) -> list[np.ndarray]:
    """The positions of each value 0..num_groups-1 in `owner` [N], ascending."""
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=num_groups))
    return np.split(order, ends[:-1]) if num_groups else []


def _log_dirichlet(
    rng: np.random.Generator, alpha: float, base: np.ndarray
) -> tuple[np.ndarray, float]:
    """Draws Dir(alpha base); returns (key, scale) with proportions softmax(key / scale).

    Gamma(a) is drawn as Gamma(a + 1) U^(1/a). The key stays finite for every alpha > 0, where the
    proportions, and even their logarithms, may underflow.
    """
    scale = min(alpha, 1.0)
    log_gamma = np.log(rng.standard_gamma(alpha * base + 1.0))
    log_uniform = np.log1p(-rng.random(base.shape))
    return scale * log_gamma + log_uniform / base * (scale / alpha), scale


def _softmax(key: np.ndarray, scale: float) -> np.ndarray:
    # Far below the largest, key / scale may reach -inf, and its proportion is 0.
    with np.errstate(over="ignore"):
        weights = np.exp((key - key.max()) / scale)
    return weights / weights.sum()


def _cut_by_label(
    rng: np.random.Generator, members: list[np.ndarray], num_clients: int, alpha: float
) -> np.ndarray:
    """The client of each sample [N]: each class (its shuffled rows) is cut among open clients."""
    total = sum(rows.size for rows in members)
    owner = np.zeros(total, np.int64)
    sizes = np.zeros(num_clients, np.int64)
    for rows in members:
        open_clients = np.flatnonzero(sizes * num_clients < total)
        proportions = _softmax(*_log_dirichlet(rng, alpha, np.ones(open_clients.size)))
        cuts = np.floor(np.cumsum(proportions)[:-1] * rows.size).astype(np.int64)
        # The rounded sum of the proportions may exceed 1.
        counts = np.diff(np.minimum(cuts, rows.size), prepend=0, append=rows.size)
        owner[rows] = np.repeat(open_clients, counts)
        sizes[open_clients] += counts
    return owner


def _top_up(
    rng: np.random.Generator, owner: np.ndarray, num_clients: int, min_size: int
) -> np.ndarray:
    """Moves samples from the largest clients to those below `min_size`; returns the new owners."""
    sizes = np.bincount(owner, minlength=num_clients)
    wanted = np.maximum(min_size - sizes, 0)
    if not wanted.any():
        return owner
    given = _gifts(sizes, int(wanted.sum()), min_size)
    shuffled = rng.permutation(owner.size)
    by_owner = shuffled[np.argsort(owner[shuffled], kind="stable")]
    rank = np.arange(owner.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    moved = by_owner[rank < np.repeat(given, sizes)]
    owner = owner.copy()
    owner[moved] = np.repeat(np.arange(num_clients), wanted)
    return owner


def _gifts(sizes: np.ndarray, wanted: int, min_size: int) -> np.ndarray:
    """How many samples each client gives when `wanted` > 0 are taken from the largest, in turn."""
    # The givers end at one level: what is above `low` is enough, what is above `high` is not.
    low, high = min_size, int(sizes.max())
    while high - low > 1:
        middle = (low + high) // 2
        enough = np.maximum(sizes - middle, 0).sum() >= wanted
        low, high = (middle, high) if enough else (low, middle)
    given = np.maximum(sizes - low, 0)
    spared = np.flatnonzero(given)[: int(given.sum()) - wanted]
    given[spared] -= 1
    return given


def _draw_by_client(
    rng: np.random.Generator, members: list[np.ndarray], num_clients: int, alpha: float
) -> np.ndarray:
    """The client of each sample [N]: every client draws its classes until it has its share."""
    left = np.array([rows.size for rows in members], np.int64)
    total = int(left.sum())
    base = left * (left.size / total)
    counts = np.zeros((num_clients, left.size), np.int64)
    for client in range(num_clients):
        key, scale = _log_dirichlet(rng, alpha, base)
        needed = total // num_clients + (client < total % num_clients)
        # Draws beyond what a class has left are the ones to repeat without that class, so this
        # loop has the law of drawing one sample at a time.
        while needed:
            classes = np.flatnonzero(left)
            drawn = rng.multinomial(needed, _softmax(key[classes], scale))
            taken = np.minimum(drawn, left[classes])
            counts[client, classes] += taken
            left[classes] -= taken
            needed -= int(taken.sum())
    owner = np.zeros(total, np.int64)
    for rows, of_class in zip(members, counts.T, strict=True):
        owner[rows] = np.repeat(np.arange(num_clients), of_class)
    return owner
