"""Flower's strategies on the same uploads: code that others wrote of the same papers.

Flower is no dependency. In an extra environment, at the top of a checkout:

    python -m pip install -r requirements.txt pytest pytest-xdist hypothesis flwr
    python -m pytest -n 0 tests/systems/test_flower.py

Where the two differ, found with flwr 1.42:

* FedAdam's rate has the factor sqrt(1 - b2^(t+1)) / (1 - b1^(t+1)) with t from 1, so its first step
  that of Adam's second. The CC servers correct no bias; the factor is a schedule here.
* FedYogi corrects none. optax's does, and has its eps beside the corrected root: the same for an
  eps near 0 and a schedule that takes the correction back.
* FedAdagrad has no momentum, whatever is asked: b1 = 0.
* FedTrimmedAvg cuts int(0.29 * 100) = 28, here 29 are cut.
* Krum's mean of several is weighed by samples, here uploads weigh the same; so here all have one.
* Bulyan of `flwr.serverapp` selects all theta uploads by one ranking; that of `flwr.server`, as the
  paper, one after the other. The latter is compared.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from uploads import SLOTS, aggregated, flat, random_uploads

import ccfl_jax as ccfl
from ccfl_jax import systems

pytest.importorskip("flwr", reason="flwr is installed for this comparison alone")
from flwr.common import (
    Code,
    FitRes,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server import strategy as flower

ROUNDS, ETA, B1, B2, TAU = 10, 0.05, 0.9, 0.99, 1e-3
START = np.random.default_rng(5).normal(size=5)


def answers(models):
    """What Flower's server gets of clients with one sample each."""
    status = Status(Code.OK, "")
    sent = [ndarrays_to_parameters([a[:4].reshape(2, 2), a[4:]]) for a in models]
    return [(None, FitRes(status, one, 1, {})) for one in sent]


def aggregate_fit(strategy, models, server_round=1):
    found, _ = strategy.aggregate_fit(server_round, answers(models), [])
    return np.concatenate([a.reshape(-1) for a in parameters_to_ndarrays(found)])


PAIRS = {
    "median": (systems.median(), flower.FedMedian),
    "trimmed_mean": (systems.trimmed_mean(0.25), lambda: flower.FedTrimmedAvg(beta=0.25)),
    "krum": (systems.krum(2), lambda: flower.Krum(num_malicious_clients=2)),
    "multi_krum": (
        systems.krum(2, 4),
        lambda: flower.Krum(num_malicious_clients=2, num_clients_to_keep=4),
    ),
    "bulyan": (systems.bulyan(1), lambda: flower.Bulyan(num_malicious_clients=1, to_keep=0)),
    "mean": (systems.norm_bound(1e6), flower.FedAvg),
}


@pytest.mark.parametrize("name", PAIRS)
def test_aggregators(name, x64):
    ours, theirs = PAIRS[name]
    rng = np.random.default_rng(0)
    for turn in range(50):
        counted = np.arange(SLOTS) < (SLOTS - turn % 3)
        uploads = random_uploads(rng, counted, 10.0 ** rng.integers(-3, 4))
        found, _ = aggregated(ours, uploads, counted)
        expected = aggregate_fit(theirs(), flat(uploads)[counted])
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def unbiased(count):
    """Flower's factor of the rate in FedAdam; `count` from 0."""
    return ETA * jnp.sqrt(1 - B2 ** (count + 2.0)) / (1 - B1 ** (count + 2.0))


def biased(count):
    """Takes back Adam's correction, which optax's Yogi makes."""
    return -ETA * (1 - B1 ** (count + 1.0)) / jnp.sqrt(1 - B2 ** (count + 1.0))


YOGI = optax.chain(
    optax.scale_by_yogi(B1, B2, eps=1e-12, eps_root=0.0, initial_accumulator_value=0.0),
    optax.scale_by_schedule(biased),
)
SERVERS = {
    "FedAdam": (ccfl.cc_fedadam(unbiased, B1, B2, TAU), {"beta_1": B1, "beta_2": B2, "tau": TAU}),
    "FedAdagrad": (ccfl.cc_fedadagrad(ETA, 0.0, TAU), {"tau": TAU}),
    "FedYogi": (YOGI, {"beta_1": B1, "beta_2": B2, "tau": 1e-12}),
}


@pytest.mark.parametrize("name", SERVERS)
def test_servers(name, x64):
    server, how = SERVERS[name]
    first = ndarrays_to_parameters([START[:4].reshape(2, 2), START[4:]])
    theirs = getattr(flower, name)(initial_parameters=first, eta=ETA, **how)
    rng, x, y = np.random.default_rng(0), jnp.asarray(START), START
    state, update = server.init(x), jax.jit(server.update)
    for t in range(ROUNDS):
        uploads = rng.normal(size=(4, 5)) + 0.3
        updates, state = update(jnp.asarray(uploads.mean(axis=0)), state, x)
        x = optax.apply_updates(x, updates)
        y = aggregate_fit(theirs, y - uploads, t + 1)
        np.testing.assert_allclose(x, y, rtol=1e-6)
    assert np.abs(y - START).max() > 0.1
