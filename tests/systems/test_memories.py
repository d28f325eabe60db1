"""Systems whose clients remember, or hear more than a model, against NumPy, by their papers.

Fifty rounds with stale starts, absent slots, a round of nobody, a client twice in a round, uneven
work and a client whose uploads are rejected.
"""

import jax
import numpy as np
import pytest
from quadratic_clients import (  # fmt: skip
    RATE,
    X0,
    D,
    N,
    both_precisions,
    busy,
    descend,
    everybody,
    grad,
    plain,
    run,
    twin,
)

import ccfl_jax as ccfl
from ccfl_jax import systems


def scaffold_twin(schedule, eta_g, option):
    c_i, cs = np.zeros((N, D)), [np.zeros(D)]

    def visit(t, xs, i, s, k, last):
        x, c = xs[t - s], cs[t - s]
        y = descend(x, k, lambda y: grad(i, y) - c_i[i] + c)
        return x - y, grad(i, x) if option == 1 else c_i[i] - c + (x - y) / (k * RATE)

    def step(t, x, uploads, who):
        before = c_i.copy()
        for (_, variate), (i, *_, last) in zip(uploads, who, strict=True):
            if last:
                c_i[i] = variate
        cs.append(cs[-1] + (c_i - before).sum(axis=0) / N)
        return x - eta_g * np.mean([u for u, _ in uploads], axis=0)

    def idle():
        cs.append(cs[-1])

    return twin(schedule, visit, step, idle=idle), c_i, cs


@pytest.mark.parametrize("option", [1, 2])
def test_scaffold(option):
    schedule, rule = busy(), systems.scaffold(RATE, option)
    xs, c_i, cs = scaffold_twin(schedule, 0.9, option)
    both_precisions(schedule, xs, ccfl.cc_fedsgd(0.9), rule=rule)
    state, info = run(schedule, ccfl.cc_fedsgd(0.9), rule=rule)
    np.testing.assert_allclose(state.clients["x"], c_i, atol=1e-5)
    np.testing.assert_allclose(state.shared["x"] / N, cs[-1], atol=1e-5)
    assert info.rejected.sum() > 0


def test_feddyn():
    schedule, alpha, g, h = busy(), 0.5, np.zeros((N, D)), np.zeros(D)

    def visit(t, xs, i, s, k, last):
        x = xs[t - s]
        return x, descend(x, k, lambda y: grad(i, y) - g[i] + alpha * (y - x))

    def step(t, now, uploads, who):
        before = g.copy()
        for (x, y), (i, *_, last) in zip(uploads, who, strict=True):
            if last:
                g[i] = before[i] - alpha * (y - x)
        h[:] += (g - before).sum(axis=0) / N
        return now - np.mean([x - y for x, y in uploads], axis=0) - h / alpha

    xs = twin(schedule, visit, step)
    both_precisions(schedule, xs, ccfl.cc_fedavg(), rule=systems.feddyn(alpha))


@pytest.mark.parametrize("skip", [0.0, 0.5])
def test_fedpd(skip):
    """All clients in every round, as the paper has it."""
    rounds, s = 50, 0.4
    schedule = everybody(rounds, np.arange(1, N + 1) % 3 + 1)
    keys = [jax.random.fold_in(jax.random.key(7), t) for t in range(rounds)]
    alone = [float(jax.random.uniform(key)) < skip for key in keys]
    dual, own, x = np.zeros((N, D)), np.tile(X0, (N, 1)), X0
    start, xs = own.copy(), [X0]
    for t in range(rounds):
        for i in range(N):
            first = start[i]
            y = descend(first, int(schedule.work[t, i]), _pulled(i, dual[i], first, s))
            dual[i] = dual[i] + (y - first) / s
            own[i] = y + s * dual[i]
        x = x if alone[t] else own.mean(axis=0)
        start = own.copy() if alone[t] else np.tile(x, (N, 1))
        xs.append(x)
    assert 0 < sum(alone) < rounds or not skip
    rule = systems.fedpd(s, skip, seed=7)
    both_precisions(schedule, xs, ccfl.cc_fedavg(), rule=rule, broken=False)


@pytest.mark.parametrize("skip", [0.0, 0.4])
def test_fedpd_of_whoever_comes(skip):
    """What a client starts from was settled when its work began, s rounds before."""
    schedule, s = busy(), 0.4
    keys = [jax.random.fold_in(jax.random.key(7), t) for t in range(schedule.num_rounds)]
    alone = [float(jax.random.uniform(key, dtype=np.float32)) < skip for key in keys]
    dual, own, begun = np.zeros((N, D)), np.tile(X0, (N, 1)), set()

    def visit(t, xs, i, stale, k, last):
        goes_on = t > stale and alone[t - stale - 1]
        first = own[i] if goes_on else xs[t - stale]
        begun.add((stale > 0, goes_on))
        y = descend(first, k, _pulled(i, dual[i], first, s))
        new = dual[i] + (y - first) / s
        return new, y + s * new

    def step(t, x, uploads, who):
        for (new, copy), (i, *_, last) in zip(uploads, who, strict=True):
            if last:
                dual[i], own[i] = new, copy
        return x if alone[t] else own.mean(axis=0)

    xs = twin(schedule, visit, step)
    both_precisions(schedule, xs, ccfl.cc_fedavg(), rule=systems.fedpd(s, skip, seed=7))
    assert len(begun) == (4 if skip else 2)


def _pulled(i, dual, first, s):
    return lambda y: grad(i, y) + dual + (y - first) / s


@pytest.mark.parametrize("wait", [False, True])
def test_mifa(wait):
    schedule, table, came = busy(), np.zeros((N, D)), np.zeros(N, bool)
    rate = 0.9

    def step(t, x, uploads, who):
        for upload, (i, _, _, last) in zip(uploads, who, strict=True):
            if last:
                table[i], came[i] = upload, True
        return x - rate * table.mean(axis=0) if came.all() or not wait else x

    xs = twin(schedule, plain, step, broken=False)
    rule = systems.mifa(wait)
    both_precisions(schedule, xs, ccfl.cc_fedsgd(rate), rule=rule, broken=False)
    assert came.all() and (xs[2] == X0).all() == wait


def test_mifa_with_everybody_there_is_fedavg():
    schedule = everybody(6, 2)
    fedavg, _ = run(schedule, ccfl.cc_fedavg(), broken=False)
    found, _ = run(schedule, ccfl.cc_fedavg(), rule=systems.mifa(), broken=False)
    np.testing.assert_allclose(found.params["x"], fedavg.params["x"], rtol=1e-6)


def test_fedlaavg_and_afa_cs_step_along_the_mean_of_the_latest_gradients():
    schedule, table = busy(), np.zeros((N, D))

    def step(t, x, uploads, who):
        for upload, (i, _, k, last) in zip(uploads, who, strict=True):
            if last:
                table[i] = upload / k
        return x - 0.5 * table.mean(axis=0)

    xs = twin(schedule, plain, step)
    for rule in (systems.fedlaavg(), systems.afa_cs()):
        both_precisions(schedule, xs, ccfl.cc_fedsgd(0.5), rule=rule, normalise="steps")


def test_afa_cd_averages_what_is_there():
    schedule = busy()

    def step(t, x, uploads, who):
        return x - 0.5 * np.mean([u / k for u, (_, _, k, _) in zip(uploads, who, strict=True)], 0)

    xs = twin(schedule, plain, step)
    rule = systems.afa_cd()
    both_precisions(schedule, xs, ccfl.cc_fedsgd(0.5), rule=rule, normalise="steps")


def test_ca2fl():
    schedule, h = busy(), np.zeros((N, D))

    def step(t, x, uploads, who):
        before = h.copy()
        new = [u - before[i] for u, (i, *_) in zip(uploads, who, strict=True)]
        for upload, (i, *_, last) in zip(uploads, who, strict=True):
            if last:
                h[i] = upload
        return x - 0.6 * (before.mean(axis=0) + np.mean(new, axis=0))

    xs = twin(schedule, plain, step)
    both_precisions(schedule, xs, ccfl.cc_fedsgd(0.6), rule=systems.ca2fl())


def test_mimelite():
    schedule, beta, ms = busy(), 0.8, [np.zeros(D)]

    def visit(t, xs, i, s, k, last):
        x, m = xs[t - s], ms[t - s]
        return x - descend(x, k, lambda y: (1 - beta) * grad(i, y) + beta * m), grad(i, x)

    def step(t, x, uploads, who):
        ms.append((1 - beta) * np.mean([g for _, g in uploads], axis=0) + beta * ms[-1])
        return x - np.mean([d for d, _ in uploads], axis=0)

    xs = twin(schedule, visit, step, idle=lambda: ms.append(ms[-1]))
    rule, aggregate = systems.mimelite(beta)
    both_precisions(schedule, xs, ccfl.cc_fedavg(), rule=rule, aggregate=aggregate)
