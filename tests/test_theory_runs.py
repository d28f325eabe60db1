"""The theorem on real runs: CC-FedAdagrad on clients with known constants, under its conditions."""

import math
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import ccfl_jax as ccfl
from ccfl_jax import theory
from ccfl_jax.theory import Problem, Setting

CLIENTS, DIMENSION, BATCH, ROUNDS = 20, 4, 2, 512
H = np.linspace(0.25, 1.0, DIMENSION)  # curvatures, so L = 1


def losses(params, batch, mask):
    """sum_j H_j (x_j - y_j)^2 / 2 over the points y of a batch, and their number."""
    each = (jnp.asarray(H, jnp.float32)[None] * (params["x"][None] - batch["y"]) ** 2 / 2).sum(1)
    return jnp.where(mask, each, 0).sum(), mask.sum()


def mean(params, batch, mask, key):
    total, count = losses(params, batch, mask)
    return total / count


TASK = ccfl.Task(
    lambda key: {"x": jnp.zeros(DIMENSION)}, mean, lambda *batch: {"loss": losses(*batch)}
)


def server_at(rates):
    eta, _, b1, eps = rates
    return ccfl.cc_fedadagrad(eta, b1, eps, initial_accumulator=eps**2)


def round_at(rates, *arguments):
    """Other rates, data and starts are no other program."""
    server = server_at(rates)
    round_fn = ccfl.build_round(TASK, server, rates[1], BATCH, work_unit="steps", lanes=CLIENTS)
    return round_fn(*arguments)


class Example(NamedTuple):
    """Clients with known constants; these hold while no |coordinate| of a model is over radius.

    A local step ends between its start and its samples, so that looking at x_t is enough.
    """

    first: np.ndarray  # x_0
    minimum: np.ndarray
    data: ccfl.FederatedData
    problem: Problem
    radius: float


@cache
def example(spread=1.0, noise=1.0, distance=4.0):
    """Points y, and x_0 that is `distance` off the minimum, their mean, in every coordinate.

    Client i has the points c_i + e_r with the same eight e_r, in pairs e, -e. The variance of a
    sample's gradient in a client is sum_j H_j^2 var_r(y), divided by the batch size when that many
    are drawn with replacement, and sigma_g^2 is sum_j H_j^2 var_i(c_i).
    """
    rng = np.random.default_rng(0)
    centres = spread * rng.normal(size=(CLIENTS, 1, DIMENSION))
    errors = noise * rng.normal(size=(1, 4, DIMENSION))
    points = (centres + np.concatenate([errors, -errors], axis=1)).astype(np.float32)
    y, flat = points.astype(np.float64), points.reshape(-1, DIMENSION)
    minimum = y.mean(axis=(0, 1))
    first = (minimum + distance).astype(np.float32)
    radius = max(abs(first).max(), abs(y).max())
    G = np.linalg.norm(H * (abs(y) + radius), axis=-1).max()
    within = (H**2 * y.var(axis=1)).sum(axis=-1).max() / BATCH
    between = (H**2 * y.mean(axis=1).var(axis=0)).sum()
    gap = float((H * (first - minimum) ** 2 / 2).sum())
    data = ccfl.FederatedData.from_indices({"y": flat}, list(np.arange(len(flat)).reshape(-1, 8)))
    constants = Problem(1.0, float(G), within**0.5, between**0.5, DIMENSION, gap)
    return Example(first, minimum, data, constants, radius)


def allowed(problem, work, b1, buffer_size, local_lr=None):
    """Nearly the largest steps that the consistent conditions allow; eta_l may be given.

    eps = sqrt(T) G eta_l / 0.9, so that D < 2.4 eps; with r = eta eta_l / eps the condition on H_1
    and H_2 reads 2 (r L tau)^2 + r L (4 C^2 + 6) + 2 G eta_l / eps <= 1.
    """
    G, K, tau = problem.G, work.max_steps, work.max_delay  # L = 1
    if local_lr is None:
        local_lr = 0.9 * min(1 / (8 * K), 1 / (K * math.sqrt(120 * (tau + 1) * 2.4)))
    eps = math.sqrt(ROUNDS) * G * local_lr / 0.9
    a, b, rest = 2 * tau**2, 4 * (b1 / (1 - b1)) ** 2 + 6, 1 - 2 * G * local_lr / eps
    r = rest / b if a == 0 else (math.sqrt(b**2 + 4 * a * rest) - b) / (2 * a)
    server_lr = 0.9 * r * eps / local_lr
    return Setting(server_lr, local_lr, b1, eps, eps**2, buffer_size, CLIENTS, ROUNDS)


def visited(clients, setting, schedule, seed):
    """x_0, ..., x_T of one run, float64 `[T + 1, d]`: from a history that keeps them all."""
    rates = tuple(np.float32(x) for x in setting[:4])
    # Slots for all clients whatever m is: another m is then no other program.
    empty = CLIENTS - setting.buffer_size
    schedule = jax.tree.map(lambda a: np.pad(a, ((0, 0), (0, empty))), schedule)
    start = TASK._replace(init=lambda key: {"x": jnp.asarray(clients.first)})
    state = ccfl.init_state(start, server_at(rates), jax.random.key(seed), ROUNDS + 1)
    state, info = ccfl.run_rounds(Partial(round_at, rates), state, schedule, clients.data)
    assert (info.participants == setting.buffer_size).all()
    return np.asarray(state.history.models["x"], np.float64)


def run(clients, b1, buffer_size, steps, delay, local_lr=None):
    """Three runs under the conditions: paths `[3, T + 1, d]`, mean ||grad f||^2, setting, work."""
    paths = []
    for seed in range(3):
        schedule = ccfl.random_schedule(seed, ROUNDS, CLIENTS, buffer_size, delay, steps, 1)
        work = theory.read_schedule(schedule, CLIENTS)
        assert (work.max_steps, work.max_delay) == (steps, delay)
        setting = allowed(clients.problem, work, b1, buffer_size, local_lr)
        for condition in theory.conditions(clients.problem, setting, work):
            assert condition.holds, str(condition)
        paths.append(visited(clients, setting, schedule, seed))
    paths = np.stack(paths)
    assert abs(paths).max() <= clients.radius
    gradients = H * (paths[:, :-1] - clients.minimum)
    return paths, (gradients**2).sum(axis=-1).mean(), setting, work


@pytest.mark.parametrize(("b1", "buffer_size", "steps", "delay", "left"), [
    (0, 20, 1, 0, 0.05), (0.5, 20, 1, 5, 0.05), (0, 5, 4, 0, 0.05), (0, 5, 4, 5, 0.05),
    (0.5, 5, 1, 5, 0.05), (0, 2, 1, 2, 0.05), (0.5, 2, 8, 10, 0.05),
    (0.9, 20, 4, 0, 0.9),  # this much momentum allows steps 55 times shorter
])  # fmt: skip
def test_runs_stay_under_the_consistent_bound(b1, buffer_size, steps, delay, left):
    """Work is drawn from 1 to `steps`, delays from 0 to `delay`; `left` is of f(x_0) - f*."""
    clients = example()
    paths, measured, setting, work = run(clients, b1, buffer_size, steps, delay)
    limit = theory.bound(clients.problem, setting, work)
    assert limit.value / 40 <= measured <= limit.value  # no bound that anything would meet
    ends = (H * (paths[:, -1] - clients.minimum) ** 2 / 2).sum(axis=-1)  # f(x_T) - f*
    assert (ends < left * clients.problem.gap).all()


def test_client_sampling_breaks_the_printed_bound_and_not_the_consistent_one():
    """From the minimum, without momentum and noise: all movement is the sampling of clients."""
    clients = example(noise=0.0, distance=0.0)
    _, measured, setting, work = run(clients, 0, 2, 1, 0, local_lr=1e-4)
    for condition in theory.conditions(clients.problem, setting, work, form="paper"):
        assert condition.holds, str(condition)
    printed = theory.bound(clients.problem, setting, work, form="paper")
    repaired = theory.bound(clients.problem, setting, work)
    assert printed.value < measured / 1000
    assert repaired.value / 200 < measured <= repaired.value
    assert run(clients, 0, CLIENTS, 1, 0, local_lr=1e-4)[1] <= printed.value  # nobody is left out


def test_the_floor_grows_with_the_noise_of_batches():
    """From the minimum of equal clients: all movement is noise, and its square goes with sigma_l^2.

    So does the bound, where all but noise and Phi, which is G^2's and G the samples', is next to 0.
    """
    measured, limits = [], []
    for noise in (0.1, 1.0):
        clients = example(spread=0.0, noise=noise, distance=0.0)
        _, found, setting, work = run(clients, 0.5, 2, 2, 0, local_lr=1e-4)
        measured.append(found)
        limits.append(theory.bound(clients.problem, setting, work))
        assert limits[-1].value / 200 < found <= limits[-1].value
    assert measured[1] / measured[0] == pytest.approx(100, rel=0.1)
    assert limits[1].noise / limits[0].noise == pytest.approx(100, rel=0.1)
