"""Synthetic(alpha, beta): a federated data set with a model of its own for every client."""

import math

import numpy as np

from ccfl_jax.checks import check_number, check_seed, check_whole

_DIMENSIONS = 60
_CLASSES = 10
# The stream of this module's draws: no other part of a run with the same seed shares it.
_STREAM = 0x53594E54


def synthetic(
    num_clients: int = 100, alpha: float = 1.0, beta: float = 1.0, seed: int = 0
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], list[np.ndarray]]:
    """Draws Synthetic(alpha, beta) of Li et al. 2020 (FedProx), section 5.1.

    For each client k, with N(mean, standard deviation):

        u_k ~ N(0, alpha),  W_k [10, 60] and b_k [10] with entries ~ N(u_k, 1)
        B_k ~ N(0, beta),   v_k [60] with entries ~ N(B_k, 1)
        x ~ Normal(v_k, Sigma),  Sigma = diag(j^-1.2), j = 1..60
        y = argmax softmax(W_k x + b_k)
        n_k = floor(exp(g)) + 50,  g ~ N(4, 2), with no upper limit

    With a larger `alpha` the clients' models differ more, with a larger `beta` their inputs. The
    paper does not say whether alpha in N(0, alpha) is a variance; as in the authors' program, of
    the published results, it is the standard deviation (the two agree at 0 and 1).

    Departures: 100 clients by default where the paper has 30; the last floor(n_k / 5) samples of
    each client are its test part, where the authors hold out a tenth; the samples of a client
    depend on the seed and its number only, not on the number of clients.

    Args:
        num_clients: number of clients.
        alpha: at least 0.
        beta: at least 0.
        seed: 0..2**32-1.

    Returns:
        train: "x" float32 [N, 60], "y" int32 [N], "client" int32 [N], the client of each row.
        test: the same of all clients' test parts.
        indices: each client's rows of train, ascending int64 arrays; each has at least 40.

    Raises:
        ValueError: an argument is not as described.

    Examples:
        >>> train, test, clients = ccfl.data.synthetic(num_clients=4, alpha=1.0, beta=1.0)
        >>> data = ccfl.FederatedData.from_indices(train, clients)
        >>> train["x"].shape[1], data.sizes.tolist()
        (60, [837, 179, 40, 2392])
    """
    check_whole("num_clients", num_clients, 1)
    for name, value in (("alpha", alpha), ("beta", beta)):
        check_number(name, value, -math.inf)
        if value < 0:
            raise ValueError(f"{name}: expected a number >= 0, found {value!r}")
    check_seed(seed)
    clients = [_client(seed, client, alpha, beta) for client in range(num_clients)]
    held_out = [y.size // 5 for _, y in clients]
    train = [(x[:-cut], y[:-cut]) for (x, y), cut in zip(clients, held_out, strict=True)]
    test = [(x[-cut:], y[-cut:]) for (x, y), cut in zip(clients, held_out, strict=True)]
    ends = np.cumsum([y.size for _, y in train])
    indices = np.split(np.arange(ends[-1]), ends[:-1])
    return _merge(train), _merge(test), indices


def _client(seed: int, client: int, alpha: float, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """One client's x float32 [n_k, 60] and y int32 [n_k]."""
    rng = np.random.default_rng([seed, _STREAM, client])
    size = int(rng.lognormal(4.0, 2.0)) + 50
    model_mean = rng.normal(0.0, alpha)
    weights = rng.normal(model_mean, 1.0, (_CLASSES, _DIMENSIONS))
    bias = rng.normal(model_mean, 1.0, _CLASSES)
    input_mean = rng.normal(rng.normal(0.0, beta), 1.0, _DIMENSIONS)
    deviation = np.arange(1, _DIMENSIONS + 1) ** -0.6
    x = rng.normal(input_mean, deviation, (size, _DIMENSIONS)).astype(np.float32)
    # softmax keeps the order, so the class is that of the largest logit.
    return x, np.argmax(x @ weights.T + bias, axis=1).astype(np.int32)


def _merge(parts: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    sizes = [y.size for _, y in parts]
    return {
        "x": np.concatenate([x for x, _ in parts]),
        "y": np.concatenate([y for _, y in parts]),
        "client": np.repeat(np.arange(len(parts), dtype=np.int32), sizes),
    }
