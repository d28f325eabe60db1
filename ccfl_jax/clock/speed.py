"""Speed: distributions of seconds, the devices of a population, work correlated with speed.

A `Distribution` is a function of a generator and a number of values that returns that many finite
numbers >= 0. The caller gives the generator, so one distribution can serve several purposes:

* as `step` or `download` of `draw_devices` it is drawn once for each client, which keeps the value;
* as `Devices.task` or `Devices.extra` it is drawn anew for every task.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ccfl_jax.checks import check_number, check_seed, check_whole, unmasked

Distribution = Callable[[np.random.Generator, int], np.ndarray]

# One generator each: another distribution of downloads must not change the seconds of a step.
_STEP_STREAM, _DOWNLOAD_STREAM, _UPLOAD_STREAM = range(0x44455630, 0x44455633)

MILD = ((1.0, 2.0), (3.0, 5.0), (5.0, 8.0))
LARGE = ((1.0, 2.0), (3.0, 5.0), (50.0, 80.0))


def constant(value: float) -> Distribution:
    """Always `value`.

    Raises:
        ValueError: unless value is finite and >= 0.

    Examples:
        >>> seconds = ccfl.speed.constant(2.0)
        >>> phones = ccfl.speed.draw_devices(seed=0, num_clients=10_000, step=seconds)
        >>> {*phones.step.tolist()}
        {2.0}
    """
    check_number("value", value)
    return lambda rng, size: np.full(size, value, np.float64)


def uniform(low: float, high: float) -> Distribution:
    """Uniform over [low, high); mean (low + high) / 2. Plato and FLSim draw such durations.

    Raises:
        ValueError: unless 0 <= low <= high, both finite.

    Examples:
        >>> seconds = ccfl.speed.uniform(1.0, 3.0)
        >>> phones = ccfl.speed.draw_devices(seed=0, num_clients=10_000, step=seconds)
        >>> round(float(phones.step.mean()), 1)
        2.0
    """
    check_number("low", low)
    check_number("high", high, low)
    return lambda rng, size: rng.uniform(low, high, size)


def exponential(mean: float) -> Distribution:
    """P(X > x) = exp(-x / mean). FLSim draws such durations, one for each task.

    Raises:
        ValueError: unless mean is finite and > 0.

    Examples:
        >>> seconds = ccfl.speed.exponential(2.0)
        >>> phones = ccfl.speed.draw_devices(seed=0, num_clients=10_000, step=seconds)
        >>> round(float((phones.step > 2).mean()), 1)  # exp(-1)
        0.4
    """
    check_number("mean", mean, above=True)
    return lambda rng, size: rng.exponential(mean, size)


def log_normal(mu: float = 1.0, sigma: float = 0.6, scale: float = 0.005) -> Distribution:
    """scale exp(mu + sigma Z), Z standard normal; median scale e^mu, mean scale e^(mu + sigma^2/2).

    The defaults are FedScale's seconds a sample (`get_completion_time_lognormal`), median 13.6 ms;
    a step on a batch of B samples has `scale=0.005 * B`. FedScale draws anew for every task, which
    is `step=constant(0.005 * B)` with `task=log_normal(scale=1.0)`; as `step` a slow device stays
    slow. Its floor of 1e-4 under exp(mu + sigma Z), 17 sigma below the median, is left out.

    Raises:
        ValueError: unless mu is finite and sigma and scale are finite and > 0.

    Examples:
        >>> seconds = ccfl.speed.log_normal(scale=0.005 * 20)
        >>> phones = ccfl.speed.draw_devices(seed=0, num_clients=10_000, step=seconds)
        >>> round(float(np.median(phones.step)), 2)  # of batches of 20: 0.1 e
        0.27
    """
    check_number("mu", mu, -math.inf)
    check_number("sigma", sigma, above=True)
    check_number("scale", scale, above=True)
    return lambda rng, size: scale * rng.lognormal(mu, sigma, size)


def half_normal(sigma: float = 1.0, least: float = 0.0) -> Distribution:
    """`least + sigma |Z|`, Z standard normal; mean least + sigma sqrt(2 / pi).

    FedBuff's authors draw a task's whole duration so, with sigma 1 (FLSim's
    `PerUserHalfNormalDurationDistribution`): `step=constant(0)` with `extra=half_normal()`.

    Raises:
        ValueError: unless sigma is finite and > 0, and least finite and >= 0.

    Examples:
        >>> phones = ccfl.speed.draw_devices(
        ...     seed=0,
        ...     num_clients=30,
        ...     step=ccfl.speed.constant(0.0),
        ...     extra=ccfl.speed.half_normal(),
        ... )
        >>> _, log = ccfl.clock_schedule(0, 2000, phones, ccfl.availability.always(30))
        >>> round(float((log.stop - log.start).mean()), 1)  # sqrt(2 / pi)
        0.8
    """
    check_number("sigma", sigma, above=True)
    check_number("least", least)
    return lambda rng, size: least + sigma * np.abs(rng.standard_normal(size))


def pareto(shape: float = 1.0, least: float = 1.0, most: float = 60.0) -> Distribution:
    """min(least U^(-1/shape), most), U uniform: P(X > x) = (least / x)^shape for least <= x < most.

    What exceeds `most` becomes `most`, by clipping and not by drawing again, so P(X = most) =
    (least / most)^shape. Plato does the same to the seconds that it lets each client sleep, with
    shape 1 and a cap of 60 s (`plato/config.py`); but its NumPy draw is the Lomax distribution,
    U^(-1/shape) - 1, which starts at 0. Here every client takes at least `least`: Plato's client
    with one second of work of its own, the cap on both together.

    Raises:
        ValueError: unless shape and least are > 0 and most >= least, all finite.

    Examples:
        >>> seconds = ccfl.speed.pareto(shape=1.0, least=1.0, most=60.0)
        >>> phones = ccfl.speed.draw_devices(seed=0, num_clients=10_000, step=seconds)
        >>> round(float(np.median(phones.step)), 1), float(phones.step.max())
        (2.0, 60.0)
    """
    check_number("shape", shape, above=True)
    check_number("least", least, above=True)
    check_number("most", most, least)
    return lambda rng, size: np.minimum(least * (1.0 + rng.pareto(shape, size)), most)


def three_classes(
    concentration: float = 1.0, ranges: tuple[tuple[float, float], ...] = MILD
) -> Distribution:
    """A fast, a middling or a slow class, then uniform over the class's [low, high).

    The class is that of the largest of three coordinates drawn from Dir(3s, 2s, s), with s =
    `concentration`. For s = 1 the classes have probability 275/432, 123/432 and 34/432; a larger s
    makes the fast class more frequent. `MILD` is U(1, 2), U(3, 5), U(5, 8); `LARGE` has U(50, 80)
    for the slow class.

    From FADAS (`g_delay_adaptive.py`, `--scale` is s, 1 by default), where these are seconds of a
    whole task. There a client keeps its class and draws its seconds anew for every task. A
    distribution knows no clients: here both are drawn for each value, so as `step` a client keeps
    both, and as `extra` both change with every task.

    Raises:
        ValueError: unless concentration is finite and > 0, and ranges are three pairs 0 <= low <=
            high, finite.

    Examples:
        >>> seconds = ccfl.speed.three_classes()
        >>> phones = ccfl.speed.draw_devices(seed=0, num_clients=10_000, step=seconds)
        >>> round(float((phones.step < 2).mean()), 2)  # 275 / 432
        0.63
    """
    check_number("concentration", concentration, above=True)
    if len(ranges) != 3 or any(len(pair) != 2 for pair in ranges):
        raise ValueError(f"ranges: expected three pairs (low, high), found {ranges!r}")
    for low, high in ranges:
        check_number("low of ranges", low)
        check_number("high of ranges", high, low)
    bounds = np.asarray(ranges, np.float64)
    alpha = np.array([3.0, 2.0, 1.0]) * concentration

    def draw_values(rng: np.random.Generator, size: int) -> np.ndarray:
        low, high = bounds[rng.dirichlet(alpha, size).argmax(axis=1)].T
        return rng.uniform(low, high)

    return draw_values


class Devices(NamedTuple):
    """The seconds of each client's task on the virtual clock.

    A task of k local steps of client i takes

        download[i] + k * step[i] * F + upload[i] + E,

    F drawn from `task` and E from `extra`, anew for every task.

    Attributes:
        step: float64 `[clients]`, seconds a local step.
        download: float64 `[clients]`, seconds until the model is there.
        upload: float64 `[clients]`, seconds until the upload has arrived.
        task: of the factor of the computing time; None is always 1.
        extra: of the seconds added, whatever the work; None is always 0.

    Examples:
        >>> phones = ccfl.speed.Devices(
        ...     step=np.array([1.0, 5.0]),
        ...     download=np.array([2.0, 2.0]),
        ...     upload=np.array([2.0, 2.0]),
        ... )
        >>> one = ccfl.clock.Server(buffer_size=1, concurrency=2)
        >>> work = ccfl.clock.Work(local_work=1, randomness=1)
        >>> schedule, _ = ccfl.clock_schedule(0, 3, phones, ccfl.availability.always(2), one, work)
        >>> schedule.client.ravel().tolist(), schedule.time.tolist()  # tasks take 5 s and 9 s
        ([0, 1, 0], [5.0, 9.0, 10.0])
    """

    step: np.ndarray
    download: np.ndarray
    upload: np.ndarray
    task: Distribution | None = None
    extra: Distribution | None = None

    def check(self) -> None:
        """Checks that the arrays are seconds of the same clients.

        Raises:
            ValueError: for an array without clients or of another shape than step's, or a value
                that is no finite number >= 0.
        """
        clients = np.size(self.step)
        if not clients:
            raise ValueError("step: expected at least one client, found none")
        for name in ("step", "download", "upload"):
            _check_values(name, unmasked(name, getattr(self, name)), clients)


def draw_devices(
    seed: int,
    num_clients: int,
    step: Distribution,
    download: Distribution | None = None,
    upload: Distribution | None = None,
    task: Distribution | None = None,
    extra: Distribution | None = None,
) -> Devices:
    """`num_clients` devices with independent draws of the seconds of a step, download and upload.

    Each of the three has its own generator, from the seed; without a distribution the download or
    upload takes no time. `task` and `extra` are kept for the tasks, which draw from them.

    Raises:
        ValueError: for a seed outside 0..2**32-1, a number of clients below 1, or a distribution
            that returns anything but `num_clients` finite numbers >= 0.

    Examples:
        >>> phones = ccfl.speed.draw_devices(
        ...     seed=0,
        ...     num_clients=100,
        ...     step=ccfl.speed.log_normal(0.0, 1.0, scale=5.0),
        ...     upload=ccfl.speed.uniform(1.0, 20.0),
        ...     task=ccfl.speed.log_normal(0.0, 0.1, scale=1.0),
        ... )
        >>> phones.step.shape, round(float(np.median(phones.step)))  # seconds
        ((100,), 6)
    """
    check_seed(seed)
    check_whole("num_clients", num_clients, 1, 2**31 - 1)

    def seconds(name: str, distribution: Distribution, stream: int) -> np.ndarray:
        return draw(name, distribution, np.random.default_rng([seed, stream]), num_clients)

    return Devices(
        seconds("step", step, _STEP_STREAM),
        seconds("download", download or constant(0.0), _DOWNLOAD_STREAM),
        seconds("upload", upload or constant(0.0), _UPLOAD_STREAM),
        task,
        extra,
    )


def draw(name: str, distribution: Distribution, rng: np.random.Generator, size: int) -> np.ndarray:
    """`size` values of a distribution, which may be the user's own, float64 `[size]`.

    Raises:
        ValueError: with `name`, unless they are `size` finite numbers >= 0.

    Examples:
        >>> def bimodal(rng, size):  # a distribution of one's own
        ...     return np.where(rng.random(size) < 0.5, 1.0, 9.0)

        >>> seconds = ccfl.speed.draw("step", bimodal, np.random.default_rng(0), size=6)
        >>> {*seconds.tolist()} <= {1.0, 9.0}
        True
    """
    values = unmasked(name, distribution(rng, size))
    _check_values(name, values, size)
    return values.astype(np.float64)


def slowness(seconds: np.ndarray) -> np.ndarray:
    """The rank of each client's slowness: float64 `[clients, 2]`, for `correlated_work`.

    Row i has the share of clients that are faster than client i and the share that are not slower.
    Clients of the same speed have the same row.

    Args:
        seconds: `[clients]`, such as `Devices.step`.

    Raises:
        ValueError: unless seconds are finite numbers >= 0 of at least one client.

    Examples:
        >>> print(ccfl.speed.slowness(np.array([3.0, 1.0, 1.0, 8.0])))
        [[0.5  0.75]
         [0.   0.5 ]
         [0.   0.5 ]
         [0.75 1.  ]]
    """
    seconds = unmasked("seconds", seconds)
    if not seconds.size:
        raise ValueError("seconds: expected at least one client, found none")
    _check_values("seconds", seconds, seconds.size)
    ordered = np.sort(seconds)
    sides = [np.searchsorted(ordered, seconds, side) for side in ("left", "right")]
    return np.stack(sides, axis=-1) / seconds.size


def correlated_work(
    rng: np.random.Generator,
    standing: np.ndarray,
    clients: np.ndarray,
    most_work: int,
    correlation: float,
) -> np.ndarray:
    r"""Local work from {1, ..., most_work} for tasks of these clients, int32 of their shape.

    A Gaussian copula with `correlation` c. With [a, b] the client's row of `standing`, U uniform
    over [a, b] and Z standard normal, both drawn for every task,

    .. math:: W = 1 + \lfloor most\_work \cdot
                  \Phi(c\,\Phi^{-1}(U) + \sqrt{1 - c^2}\,Z) \rfloor

    Where all clients take part equally often, U and so W are exactly uniform, for every c and all
    speeds. With c = 0 work is independent of the client; with c = 1 no client does more than a
    slower one, and with c = -1 none does less. For distinct speeds, many clients and large
    `most_work`, Spearman's correlation of slowness and work is 6 / pi arcsin(c / 2). Clients of the
    same speed have the same distribution of work, so with equal speeds c changes nothing.

    Every task takes two draws, for every c. The rule is this library's own.

    Args:
        standing: float64 `[num_clients, 2]`, what `slowness` returns.
        clients: integers of any shape, the client of each task.

    Raises:
        ValueError: for a client without a row of `standing`, most_work outside 1..2**31-1, or a
            correlation outside [-1, 1].

    Examples:
        >>> standing = ccfl.speed.slowness(np.arange(1.0, 101.0))  # client 99 is the slowest
        >>> rng, tasks = np.random.default_rng(0), np.arange(100)
        >>> work = ccfl.speed.correlated_work(rng, standing, tasks, most_work=6, correlation=-1.0)
        >>> int(work[0]), int(work[-1])  # the slowest does least
        (6, 1)
    """
    from scipy.special import ndtr, ndtri  # a fifth of a second, which few need

    check_whole("most_work", most_work, 1, 2**31 - 1)
    check_number("correlation", correlation, -1.0, 1.0)
    clients, standing = unmasked("clients", clients), unmasked("standing", standing)
    if clients.dtype.kind not in "iu":
        raise ValueError(f"clients: expected integers, found {clients.dtype}")
    if clients.size and not 0 <= clients.min() <= clients.max() < len(standing):
        raise ValueError(
            f"clients: expected 0 to {len(standing) - 1}, found {clients.min()} to {clients.max()}"
        )
    low, high = np.moveaxis(standing[clients], -1, 0)
    # Rounding may reach 0 and 1, whose quantiles are infinite.
    place = np.clip(rng.uniform(low, high), 2.0**-60, 1.0 - 2.0**-53)
    noise = rng.standard_normal(clients.shape)
    mixed = correlation * ndtri(place) + math.sqrt(1.0 - correlation**2) * noise
    work = 1 + np.floor(most_work * ndtr(mixed))
    return np.minimum(work, most_work).astype(np.int32)  # ndtr rounds to 1 from 8.3 on


def _check_values(name: str, values: np.ndarray, size: int) -> None:
    if values.shape != (size,) or values.dtype.kind not in "fiu":
        raise ValueError(f"{name}: expected numbers {(size,)}, found {values.dtype} {values.shape}")
    wrong = values[~(np.isfinite(values) & (values >= 0))]
    if wrong.size:
        raise ValueError(f"{name}: expected finite numbers >= 0, found {wrong[0]}")
