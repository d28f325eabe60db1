"""Servers as their papers have them, against NumPy, on stale uneven rounds."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from quadratic_clients import RATE, D, both_precisions, busy, everybody, plain, run, twin, visits
from refusal import refused

import ccfl_jax as ccfl
from ccfl_jax import systems

EPS = 1e-2


def adaptive(schedule, grow, root, first, eta=0.1, b1=0.9):
    """m_t, v_t and x_{t+1} = x_t - eta m_t / root(v_t)."""
    m, v = np.zeros(D), np.full(D, first)

    def step(t, x, uploads, who):
        d = np.mean(uploads, axis=0)
        m[:] = b1 * m + (1 - b1) * d
        v[:] = grow(v, d)
        return x - eta * m / root(v)

    return twin(schedule, plain, step)


def tau(v):
    return np.sqrt(v) + EPS


@pytest.mark.parametrize(
    ("server", "grow", "b1"),
    [
        (systems.fedadagrad(0.1, eps=EPS), lambda v, d: v + d**2, 0.0),
        (systems.fedadam(0.1, eps=EPS), lambda v, d: 0.99 * v + 0.01 * d**2, 0.9),
        (systems.fedyogi(0.1, eps=EPS), lambda v, d: v - 0.01 * d**2 * np.sign(v - d**2), 0.9),
    ],
    ids=["fedadagrad", "fedadam", "fedyogi"],
)
def test_adaptive_servers_as_published(server, grow, b1):
    schedule = busy()
    both_precisions(schedule, adaptive(schedule, grow, tau, EPS**2, b1=b1), server)


def test_fedams_of_the_max_form():
    schedule, n = busy(), np.zeros(D)

    def grow(v, d):
        n[:] = 0.99 * n + 0.01 * d**2
        return np.maximum(v, n)

    xs = adaptive(schedule, grow, np.sqrt, EPS)
    both_precisions(schedule, xs, systems.fedams(0.1, eps=EPS))


@pytest.mark.parametrize("nesterov", [False, True])
def test_fedavgm(nesterov):
    schedule, v = busy(), np.zeros(D)

    def step(t, x, uploads, who):
        d = np.mean(uploads, axis=0)
        v[:] = 0.5 * v + d
        return x - 0.4 * (d + 0.5 * v if nesterov else v)

    xs = twin(schedule, plain, step)
    both_precisions(schedule, xs, systems.fedavgm(0.4, 0.5, nesterov))


def test_slowmo_follows_a_local_rate_that_falls():
    """Every other server update works at half the rate: u counts gradients, not steps."""
    schedule, u = busy(), np.zeros(D)
    count = [0]

    def step(t, x, uploads, who):
        rate = RATE / (1 + count[0] % 2)
        count[0] += 1
        u[:] = 0.6 * u + np.mean(uploads, axis=0) / rate
        return x - 0.5 * rate * u

    xs = twin(schedule, plain, step)
    server = systems.slowmo(0.5, lambda count: RATE / (1 + count % 2), 0.6)
    both_precisions(schedule, xs, server)
    fixed, _ = run(schedule, systems.slowmo(0.5, RATE, 0.6))
    heavy, _ = run(schedule, optax.sgd(0.5, 0.6))
    np.testing.assert_allclose(fixed.params["x"], heavy.params["x"], rtol=1e-5)


@pytest.mark.parametrize("capped", [False, True])
def test_fadas(capped):
    schedule, m, v, v_hat = busy(), np.zeros(D), np.zeros(D), np.zeros(D)
    eta = 0.4

    def step(t, x, uploads, who):
        d, oldest = np.mean(uploads, axis=0), max(s for _, s, *_ in who)
        m[:], v[:] = 0.9 * m + 0.1 * d, 0.99 * v + 0.01 * d**2
        v_hat[:] = np.maximum(v_hat, v)
        late = min(eta, 1 / oldest) if capped and oldest else eta / max(oldest, 1)
        return x - (late if oldest > 1 else eta) * m / (np.sqrt(v_hat) + 0.1)

    server = systems.fadas(eta, threshold=1, capped=capped, eps=0.1)
    both_precisions(schedule, twin(schedule, plain, step), server)


# Rates at which each can go the way of 2.9 in 80 rounds; RAdam takes its first steps carefully.
PLUG_INS = {
    "rmsprop": lambda: optax.rmsprop(0.05),
    "adadelta": lambda: optax.adadelta(3.0, eps=1e-2),
    "adabelief": lambda: optax.adabelief(0.1),
    "radam": lambda: optax.radam(0.3),
    "yogi": lambda: optax.yogi(0.1),
    "lion": lambda: optax.lion(0.1, weight_decay=0.0),
    "muon": lambda: optax.contrib.muon(0.1, weight_decay=0.0),
}


@pytest.mark.parametrize("name", PLUG_INS)
def test_servers_of_optax_reach_the_mean_problems_optimum(name):
    """From a distance of 2.9 to within 0.7 of where FedAvg itself ends, with everybody there."""
    schedule = everybody(80, 1)
    fedavg, _ = run(schedule, ccfl.cc_fedsgd(1.0), broken=False)
    found, _ = run(schedule, PLUG_INS[name](), broken=False)
    start, end = np.arange(1.0, D + 1), np.asarray(fedavg.params["x"])
    assert np.linalg.norm(start - end) > 2.5
    assert np.linalg.norm(found.params["x"] - end) < 0.7


def test_servers_refuse_numbers_outside_their_range():
    share = "expected a finite number >= 0 and < 1, found"
    refused(f"b2: {share} 1", systems.fedyogi, 0.1, b2=1)
    for server in (systems.fedavgm, lambda rate, b1: systems.slowmo(rate, 0.1, b1)):
        refused(f"b1: {share} 1.0", server, 1, 1.0)
    for rule in (systems.fednova, systems.mimelite):
        refused(f"momentum: {share} 1", rule, 1)
    for server in (systems.fedadagrad, systems.fedadam, systems.fedyogi, systems.fedams):
        refused("learning_rate: expected a finite number >= 0, found nan", server, np.nan)
        refused("eps: expected a finite number >..., found None", server, 1, eps=None)
    refused("local_lr: expected a finite number > 0, found 0", systems.slowmo, 1, 0)
    refused("threshold: expected an integer >= 1, found 0", systems.fadas, 0.1, 0)


def test_a_server_is_told_of_the_rounds_uploads():
    """What optax's extra arguments bring: ages, steps, samples, who, and a key of the round."""
    seen = []

    def update(updates, state, params=None, **extra):
        arrivals = extra["arrivals"]
        total = jnp.where(arrivals.counted, arrivals.staleness * arrivals.steps, 0).sum()
        draws = extra["key"]
        return updates, (total, jnp.asarray(arrivals.participants), draws)

    def init(params):
        zero = jnp.zeros((), jnp.int32)
        return zero, zero, jax.random.key(0)

    watcher = optax.GradientTransformationExtraArgs(init, update)
    schedule = busy(10)
    for stop in range(1, 5):
        state, _ = run(schedule.rounds(0, stop), optax.chain(watcher, ccfl.cc_fedavg()))
        seen.append(state.server[0])
    for t, (total, count, _) in enumerate(seen):
        who = list(visits(schedule, t))
        assert int(total) == sum(s * k for _, s, k, _ in who) and int(count) == len(who)
    keys = {tuple(jax.random.key_data(key).tolist()) for *_, key in seen}
    assert len(keys) == 4
