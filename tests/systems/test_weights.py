"""Systems of weights and of other local steps, against NumPy, by their papers.

The rounds are those of `test_memories`.
"""

import numpy as np
import optax
import pytest
from quadratic_clients import (  # fmt: skip
    RATE,
    SIZES,
    X0,
    A,
    B,
    N,
    both_precisions,
    busy,
    delta,
    descend,
    everybody,
    grad,
    mean,
    plain,
    run,
    twin,
)

import ccfl_jax as ccfl
from ccfl_jax import systems, terms


def test_fedavg_by_samples():
    schedule = busy()

    def step(t, x, uploads, who):
        p = SIZES[[i for i, *_ in who]].astype(float)
        return x - (p[:, None] * np.array(uploads)).sum(axis=0) / p.sum()

    both_precisions(schedule, twin(schedule, plain, step), ccfl.cc_fedavg(), rule=systems.fedavg())


def test_fedprox():
    schedule = busy()

    def visit(t, xs, i, s, k, last):
        x = xs[t - s]
        return x - descend(x, k, lambda y: grad(i, y) + 0.7 * (y - x))

    xs = twin(schedule, visit, mean)
    both_precisions(schedule, xs, ccfl.cc_fedavg(), rule=systems.fedprox(0.7))


@pytest.mark.parametrize("rho", [0.0, 0.8])
def test_fednova(rho):
    schedule = busy()

    def visit(t, xs, i, s, k, last):
        y, v, norm, weight = xs[t - s], 0.0, 0.0, 0.0
        for _ in range(k):
            v = rho * v + grad(i, y)
            y = y - 0.05 * v
            weight = rho * weight + 1  # of one gradient in the sum, by a's definition
            norm += weight
        return xs[t - s] - y, norm

    def step(t, x, uploads, who):
        p = SIZES[[i for i, *_ in who]] / SIZES[[i for i, *_ in who]].sum()
        tau = sum(q * a for q, (_, a) in zip(p, uploads, strict=True))
        return x - tau * sum(q * d / a for q, (d, a) in zip(p, uploads, strict=True))

    rule, aggregate = systems.fednova(rho)
    local = optax.sgd(0.05, rho) if rho else 0.05
    xs = twin(schedule, visit, step)
    both_precisions(schedule, xs, ccfl.cc_fedavg(), local, rule, aggregate)


def test_fednova_of_equal_shares_is_cc_fedsgd_at_tau_eff():
    schedule = everybody(5, 3)
    rule, aggregate = systems.fednova(by_samples=False)
    nova, _ = run(schedule, ccfl.cc_fedavg(), rule=rule, aggregate=aggregate, broken=False)
    sgd, _ = run(schedule, ccfl.cc_fedsgd(3.0), normalise="steps", broken=False)
    np.testing.assert_allclose(nova.params["x"], sgd.params["x"], rtol=1e-6)


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize(
    ("weight", "of"),
    [
        (terms.constant(), lambda s: 1.0),
        (None, lambda s: (1 + s) ** -0.5),
        (terms.hinge(10.0, 1.0), lambda s: 1.0 if s <= 1 else 1 / (10 * (s - 1) + 1)),
    ],
)
def test_fedasync(weight, of, slots):
    """Of one upload a round, and of buffers: each model is mixed into x_t, and the results' mean
    is the next."""
    schedule = busy()
    schedule = schedule.replace(present=schedule.present & (np.arange(4) >= 4 - slots))

    def visit(t, xs, i, s, k, last):
        return 0.6 * of(s), descend(xs[t - s], k, lambda y: grad(i, y))

    def step(t, x, uploads, who):
        return np.mean([(1 - alpha) * x + alpha * y for alpha, y in uploads], axis=0)

    xs = twin(schedule, visit, step)
    both_precisions(schedule, xs, ccfl.cc_fedavg(), rule=systems.fedasync(0.6, weight))


def test_fedasync_with_alpha_1_and_nothing_stale_is_the_clients_model():
    schedule = everybody(1, 4).replace(present=np.arange(N)[None] == 2)
    state, _ = run(schedule, ccfl.cc_fedavg(), rule=systems.fedasync(1.0), broken=False)
    expected = descend(X0, 4, lambda y: grad(2, y))
    np.testing.assert_allclose(state.params["x"], expected, rtol=1e-6)


@pytest.mark.parametrize("divide", [False, True])
def test_fedbuff(divide):
    schedule = busy()

    def step(t, x, uploads, who):
        w = np.array([(1 + s) ** -0.5 for _, s, *_ in who])
        total = w.sum() if divide else len(w)
        return x - 0.7 * (w[:, None] * np.array(uploads)).sum(axis=0) / total

    xs = twin(schedule, plain, step)
    both_precisions(schedule, xs, ccfl.cc_fedsgd(0.7), rule=systems.fedbuff(0.5, divide))


def test_fedbuff_without_weights_is_cc_fedsgd_of_undivided_uploads():
    schedule = busy()
    found, _ = run(schedule, ccfl.cc_fedsgd(0.7), rule=systems.fedbuff(0.0))
    plain_run, _ = run(schedule, ccfl.cc_fedsgd(0.7))
    np.testing.assert_allclose(found.params["x"], plain_run.params["x"], rtol=1e-6)


def test_fedexp():
    schedule = busy()

    def step(t, x, uploads, who):
        mean_delta = np.mean(uploads, axis=0)
        square = sum(np.sum(u**2) for u in uploads)
        rate = max(1, square / (2 * len(uploads) * (np.sum(mean_delta**2) + 0.01)))
        rates.append(rate)
        return x - rate * mean_delta

    rates = []
    xs = twin(schedule, plain, step)
    assert max(rates) > 1
    rule, aggregate = systems.fedexp(0.01)
    both_precisions(schedule, xs, ccfl.cc_fedavg(), rule=rule, aggregate=aggregate)


@pytest.mark.parametrize("q", [0.0, 2.0])
def test_qfedavg(q):
    schedule = busy()

    def visit(t, xs, i, s, k, last):
        x = xs[t - s]
        w, f = delta(xs, t, i, s, k) / RATE, (A[i] * (x - B[i]) ** 2).sum() / 2
        return f**q * w, q * f ** (q - 1) * (w**2).sum() + f**q / RATE

    def step(t, x, uploads, who):
        return x - sum(d for d, _ in uploads) / sum(h for _, h in uploads)

    xs = twin(schedule, visit, step)
    rule, aggregate = systems.qfedavg(q, RATE)
    both_precisions(schedule, xs, ccfl.cc_fedavg(), rule=rule, aggregate=aggregate)


def test_sam():
    schedule = busy()

    def visit(t, xs, i, s, k, last):
        def sharp(y):
            g = grad(i, y)
            return grad(i, y + 0.3 * g / np.linalg.norm(g))

        return xs[t - s] - descend(xs[t - s], k, sharp)

    xs = twin(schedule, visit, mean)
    local = optax.chain(systems.sam(0.3), optax.sgd(RATE))
    both_precisions(schedule, xs, ccfl.cc_fedavg(), local)


def test_fedlesam():
    schedule, old = busy(), {}

    def visit(t, xs, i, s, k, last):
        x = xs[t - s]
        away = old.get(i, x) - x
        away = 0.3 * away / (np.linalg.norm(away) or 1)
        return x - descend(x, k, lambda y: grad(i, y + away)), x

    def step(t, now, uploads, who):
        for (_, x), (i, *_, last) in zip(uploads, who, strict=True):
            if last:
                old[i] = x
        return now - np.mean([d for d, _ in uploads], axis=0)

    xs = twin(schedule, visit, step)
    both_precisions(schedule, xs, ccfl.cc_fedavg(), rule=systems.fedlesam(0.3))
