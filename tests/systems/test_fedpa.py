"""FedPA against NumPy: the samples' covariance as a matrix, and its inverse."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from quadratic_clients import RATE, D, assert_same_run, busy, delta, grad, run, twin
from refusal import refused

import ccfl_jax as ccfl
from ccfl_jax import systems


def long(most=12):
    """As `busy`, with visits of 1 to 12 steps: of no sample, of some, and of more than are kept."""
    schedule = busy()
    work = np.random.default_rng(2).integers(1, most + 1, schedule.work.shape)
    return schedule.replace(work=work.astype(np.int32))


def iterates(i, x, steps):
    found = []
    for _ in range(steps):
        x = x - RATE * grad(i, x)
        found.append(x)
    return found


def posterior(x, seen, burn_in, every, most, shrinkage):
    """The upload of the iterates x_1, ..., x_K."""
    late = seen[burn_in:]
    samples = [
        np.mean(late[j : j + every], axis=0) for j in range(0, len(late) - every + 1, every)
    ][:most]
    if not samples:
        return x - seen[-1]
    rho = 1 / (1 + (len(samples) - 1) * shrinkage)
    spread = np.cov(np.array(samples).T) if len(samples) > 1 else np.zeros((D, D))
    covariance = rho * np.eye(D) + (1 - rho) * spread
    return np.linalg.inv(covariance) @ (x - np.mean(samples, axis=0))


@pytest.mark.parametrize(
    ("burn_in", "every", "most", "shrinkage"),
    [(2, 3, 3, 0.5), (0, 1, 5, 0.2), (4, 2, 8, 2.0), (3, 1, 1, 0.0)],
)
def test_fedpa(burn_in, every, most, shrinkage):
    schedule, lengths = long(), set()

    def visit(t, xs, i, s, k, last):
        lengths.add(min(max(k - burn_in, 0) // every, most))
        return posterior(xs[t - s], iterates(i, xs[t - s], k), burn_in, every, most, shrinkage)

    xs = twin(schedule, visit, lambda t, x, uploads, who: x - 0.3 * np.mean(uploads, axis=0))
    rule = systems.fedpa(burn_in, every, most, shrinkage)
    assert lengths >= {0, 1} or (burn_in == 0 and lengths >= {1, 5})
    with jax.enable_x64(True):
        assert_same_run(run(schedule, ccfl.cc_fedsgd(0.3), rule=rule)[0], xs, 1e-9)
    # In float32 the samples lie within a few steps of each other, so a digit of their differences
    # is lost, and 1 / rho multiplies what is left.
    assert_same_run(run(schedule, ccfl.cc_fedsgd(0.3), rule=rule)[0], xs, 1e-4)


def test_visits_too_short_for_a_sample_send_the_plain_difference():
    """One iterate fewer than a sample needs, and as many as it needs."""
    schedule = long(6)
    plain, _ = run(schedule, ccfl.cc_fedavg())
    short, _ = run(schedule, ccfl.cc_fedavg(), rule=systems.fedpa(3, 4, 2))
    np.testing.assert_allclose(short.params["x"], plain.params["x"], rtol=1e-6)
    enough, _ = run(schedule, ccfl.cc_fedavg(), rule=systems.fedpa(3, 3, 2))
    assert np.abs(np.asarray(enough.params["x"] - plain.params["x"])).max() > 1e-3


@pytest.mark.parametrize("shrinkage", [0.0, 0.5])
def test_samples_that_coincide_have_a_covariance_of_zero(shrinkage):
    """The first local step alone moves: all samples are x_1, and the upload (x - x_1) / rho."""
    schedule = long()
    schedule = schedule.replace(work=np.full_like(schedule.work, 6))
    local = optax.sgd(lambda count: jnp.where(count == 0, RATE, 0.0))
    rho = 1 / (1 + 2 * shrinkage)

    def visit(t, xs, i, s, k, last):
        return delta(xs, t, i, s, 1) / rho

    xs = twin(schedule, visit, lambda t, x, uploads, who: x - 0.3 * np.mean(uploads, axis=0))
    rule = systems.fedpa(0, 2, 3, shrinkage)
    state, info = run(schedule, ccfl.cc_fedsgd(0.3), local, rule)
    assert_same_run(state, xs, 1e-5)
    assert info.finite.all() and info.rejected.sum() == (info.present & ~info.counted).sum()


def test_numbers_outside_their_range_are_refused():
    for arguments, message in (
        ((-1, 1, 1), "burn_in: expected an integer >= 0, found -1"),
        ((0, 0, 1), "every: expected an integer >= 1, found 0"),
        ((0, 1, 0), "samples: expected an integer >= 1, found 0"),
        ((0, 1, 1, -0.1), "shrinkage: expected a finite number >= 0, found -0.1"),
    ):
        refused(message, systems.fedpa, *arguments)
