"""Pieces of rules against NumPy: terms of the loss, weights, transformed uploads, kept states."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from quadratic_clients import (
    RATE,
    SIZES,
    D,
    N,
    both_precisions,
    busy,
    delta,
    descend,
    grad,
    mean,
    run,
    twin,
)
from refusal import refused

import ccfl_jax as ccfl
from ccfl_jax import systems, terms


def test_proximal():
    schedule = busy()

    def visit(t, xs, i, s, k, last):
        x = xs[t - s]
        return x - descend(x, k, lambda y: grad(i, y) + 0.7 * (y - x))

    xs = twin(schedule, visit, mean)
    local = lambda: optax.chain(terms.proximal(0.7), optax.sgd(RATE))  # noqa: E731
    both_precisions(schedule, xs, ccfl.cc_fedavg(), local())
    rule = terms.told(lambda visit: terms.proximal(0.7))
    both_precisions(schedule, xs, ccfl.cc_fedavg(), rule=rule)


def test_a_term_knows_its_visit():
    schedule = busy()

    def visit(t, xs, i, s, k, last):
        x = xs[t - s]
        return x - descend(x, k, lambda y: grad(i, y) + 0.2 * s * (y - x))

    rule = terms.told(lambda visit: terms.proximal(0.2 * visit.staleness.astype(float)))
    both_precisions(schedule, twin(schedule, visit, mean), ccfl.cc_fedavg(), rule=rule)


@pytest.mark.parametrize("divide", [False, True])
@pytest.mark.parametrize(
    ("weight", "of"),
    [
        (terms.by_samples, lambda i, s: SIZES[i]),
        (terms.polynomial(0.5, 2.0), lambda i, s: 2 * (1 + s) ** -0.5),
        (terms.hinge(3.0, 1.0), lambda i, s: 1 if s <= 1 else 1 / (3 * (s - 1) + 1)),
        (terms.constant(0.5), lambda i, s: 0.5),
    ],
)
def test_weights(weight, of, divide):
    schedule = busy()

    def step(t, x, uploads, who):
        w = np.array([of(i, s) for i, s, *_ in who], float)
        total = w.sum() if divide else len(w)
        return x - 0.05 * (w[:, None] * np.array(uploads)).sum(axis=0) / total

    xs = twin(schedule, lambda t, xs, *one: delta(xs, t, *one[:3]), step)
    rule = terms.weighted(weight, divide=divide)
    both_precisions(schedule, xs, ccfl.cc_fedsgd(0.05), rule=rule)


def test_clipped_uploads():
    schedule = busy()

    def visit(t, xs, i, s, k, last):
        d = delta(xs, t, i, s, k)
        return d * min(1, 0.1 / np.linalg.norm(d))

    xs = twin(schedule, visit, mean)
    rule = terms.sending(optax.clip_by_global_norm(0.1))
    both_precisions(schedule, xs, ccfl.cc_fedavg(), rule=rule)


def test_a_local_momentum_that_clients_keep():
    schedule, v = busy(), np.zeros((N, D))

    def visit(t, xs, i, s, k, last):
        y, own = xs[t - s], v[i]
        for _ in range(k):
            own = 0.9 * own + grad(i, y)
            y = y - 0.02 * own
        return xs[t - s] - y, own

    def step(t, x, uploads, who):
        for (_, own), (i, *_, last) in zip(uploads, who, strict=True):
            if last:
                v[i] = own
        return x - np.mean([d for d, _ in uploads], axis=0)

    xs = twin(schedule, visit, step)
    rule = terms.keeping(optax.sgd(0.02, 0.9))
    both_precisions(schedule, xs, ccfl.cc_fedavg(), rule=rule)


def test_no_pull_is_plain_and_a_term_of_zero_too():
    schedule = busy()
    plain, _ = run(schedule, ccfl.cc_fedavg())
    for term in (terms.proximal(0.0), terms.linear({"x": jnp.zeros(D)})):
        local = optax.chain(term, optax.sgd(RATE))
        found, _ = run(schedule, ccfl.cc_fedavg(), local)
        np.testing.assert_allclose(found.params["x"], plain.params["x"], rtol=1e-6)


def test_pieces_refuse_what_they_cannot_do():
    refused("mu: expected a finite number >= 0, found -1", terms.proximal, -1)
    refused("power: expected a finite number >= 0, found nan", terms.polynomial, float("nan"))
    refused("slope: expected a finite number >= 0, found -2", terms.hinge, -2)
    refused("rule: expected a ccfl.Rule or None, found ...", terms.weighted, terms.by_samples, 3)
    refused("weight: expected a function, as terms.by_samples, found 0.5", terms.weighted, 0.5)
    refused("term: expected a function of a visit, found GradientTr...", terms.told, optax.sgd(1))
    message = "staleness: expected a weight, as terms.polynomial(0.5), found 0.5"
    refused(message, systems.fedasync, 0.6, 0.5)
    refused("transform: expected an optax transformation of uploads, found 3", terms.sending, 3)
    by_size = terms.weighted(terms.by_samples)
    sent = terms.sending(optax.identity(), by_size)
    message = "sending: expected a rule of plain uploads, found weighted ones: write weighted(...))"
    refused(message, run, busy(), ccfl.cc_fedavg(), rule=sent)
    message = "weighted: expected a rule of plain uploads, found weighted ones"
    refused(message, run, busy(), ccfl.cc_fedavg(), rule=terms.weighted(terms.by_samples, by_size))
    message = "aggregate: expected uploads of equal weight, found weighted ones (the rule's)"
    refused(message, run, busy(), ccfl.cc_fedavg(), rule=by_size, aggregate=systems.median())
    nova, aggregate = systems.fednova()
    message = "sending: expected a rule whose uploads are like the parameters, found others"
    sent = terms.sending(optax.identity(), nova)
    refused(message, run, busy(), ccfl.cc_fedavg(), rule=sent, aggregate=aggregate)
