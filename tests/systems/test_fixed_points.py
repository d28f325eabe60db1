"""On quadratics with different optima: who ends at the optimum, and who beside it."""

import numpy as np
import pytest
from quadratic_clients import A, B, N, everybody, run

import ccfl_jax as ccfl
from ccfl_jax import systems

OPTIMUM = (A * B).sum(axis=0) / A.sum(axis=0)
WORK = np.arange(N) % 3 + 2


def end(rule, rounds=400, rate=0.1, **how):
    state, _ = run(everybody(rounds, WORK), ccfl.cc_fedavg(), rate, rule, broken=False, **how)
    return np.abs(np.asarray(state.params["x"]) - OPTIMUM).max()


def test_fedavg_with_uneven_local_steps_ends_beside_the_optimum():
    assert 0.05 < end(None) == pytest.approx(end(None, 800), rel=1e-4)


@pytest.mark.parametrize(
    "rule",
    [systems.scaffold(0.1), systems.scaffold(0.1, 1), systems.feddyn(0.5), systems.fedpd(0.5)],
    ids=["scaffold", "scaffold of the gradient", "feddyn", "fedpd"],
)
def test_corrections_of_drift_reach_the_optimum(rule):
    assert end(rule) < 1e-4


def test_mifa_with_one_client_a_round_forgets_nobody():
    """With one local step and clients that come seldom: the optimum; FedAvg of whoever is there
    ends far from it."""
    schedule = everybody(3000, 1)
    present = np.zeros((3000, N), bool)
    present[:N] = True
    often = [0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]  # client 0 six times as often
    present[np.arange(N, 3000), np.resize(often, 3000 - N)] = True
    schedule = schedule.replace(present=present)
    ends = [
        np.abs(
            np.asarray(run(schedule, ccfl.cc_fedsgd(0.2), 0.1, rule, broken=False)[0].params["x"])
            - OPTIMUM
        ).max()
        for rule in (systems.mifa(), None)
    ]
    assert ends[0] < 1e-3 < 0.1 < ends[1]


def test_scaffold_with_all_clients_and_one_step_is_sgd():
    schedule = everybody(20, 1)
    found, _ = run(schedule, ccfl.cc_fedavg(), rule=systems.scaffold(0.1), broken=False)
    sgd, _ = run(schedule, ccfl.cc_fedavg(), broken=False)
    np.testing.assert_allclose(found.params["x"], sgd.params["x"], rtol=1e-5)
