"""Private methods without their noise against NumPy, and the noise by its moments."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from quadratic_clients import DELAY, D, both_precisions, busy, delta, run, twin
from refusal import refused

import ccfl_jax as ccfl
from ccfl_jax import systems, terms

MANY = 40_000
KEY = jax.random.key(3)


def check_std(numbers, std):
    """Of normal numbers of mean 0, to five standard deviations of mean and of std."""
    n = numbers.size
    assert abs(numbers.mean()) < 5 * std / n**0.5
    assert abs(numbers.std() - std) < 5 * std / (2 * n) ** 0.5


def of_norm(most, d):
    return d * min(1, most / np.linalg.norm(d))


def clipped_twin(schedule):
    def visit(t, xs, *one):
        return of_norm(0.2, delta(xs, t, *one[:3]))

    return twin(schedule, visit, lambda t, x, uploads, who: x - np.sum(uploads, axis=0) / 4)


def test_clipped_uploads_over_a_fixed_number():
    schedule = busy()
    rule, aggregate, noise = systems.dp_fedavg(0.2, 0.0, uploads=4)
    server = optax.chain(noise, ccfl.cc_fedavg())
    both_precisions(schedule, clipped_twin(schedule), server, rule=rule, aggregate=aggregate)


def test_a_tree_without_noise_is_the_same():
    schedule = busy()
    rule, aggregate, noise = systems.dp_ftrl(0.2, 0.0, uploads=4, rounds=50)
    server = optax.chain(noise, ccfl.cc_fedavg())
    both_precisions(schedule, clipped_twin(schedule), server, rule=rule, aggregate=aggregate)


def test_a_clip_that_follows_a_quantile():
    schedule, clips, clipped = busy(), [0.15], []

    def visit(t, xs, i, s, k, last):
        clips.extend(clips[-1:] * (t + 1 - len(clips)))  # rounds of nobody change none
        d, clip = delta(xs, t, i, s, k) / 2, clips[t - s]
        clipped.append(np.linalg.norm(d) > clip)
        return of_norm(1, d / clip), 0.5 - clipped[-1]

    def step(t, x, uploads, who):
        share = 0.5 + sum(b for _, b in uploads) / 4
        clips.append(clips[t] * np.exp(-0.2 * (share - 0.7)))
        return x - clips[t] * np.sum([u for u, _ in uploads], axis=0) / 4

    def finish(visit, end):
        return jax.tree.map(lambda a: a * visit.message, end.upload), visit.memory

    halving = ccfl.Rule(message=lambda mean, server: jnp.asarray(0.5, float), finish=finish)
    xs = twin(schedule, visit, step)
    rule, aggregate, noise = systems.dp_fedavg_adaptive(0.0, 4, 0.7, 0.2, 0.15, rule=halving)
    server = optax.chain(noise, ccfl.cc_fedavg())
    both_precisions(schedule, xs, server, rule=rule, aggregate=aggregate)
    state, _ = run(schedule, server, rule=rule, aggregate=aggregate)
    np.testing.assert_allclose(systems.adaptive_clip(state.server), clips[-1], rtol=1e-5)
    messages = state.history.messages[1]
    for s in range(DELAY + 1):
        np.testing.assert_allclose(messages[(50 - s) % (DELAY + 1)], clips[50 - s], rtol=1e-5)
    assert 0.1 < np.mean(clipped) < 0.8 and min(clips) < 0.8 * max(clips)


def test_gaussian_noise():
    tree = {"a": jnp.full(MANY, 3.0), "b": jnp.zeros((MANY // 2, 2), jnp.bfloat16)}
    noise = systems.gaussian_noise(0.5)
    found, _ = noise.update(tree, noise.init(tree), key=KEY)
    for a, mean in ((found["a"], 3), (found["b"].ravel(), 0)):
        assert a.dtype == jnp.float32
        check_std(np.asarray(a, float) - mean, 0.5)
    check_std(np.asarray(found["a"] - 3 + found["b"].ravel(), float), 0.5 * 2**0.5)  # independent
    again, _ = noise.update(tree, noise.init(tree), key=jax.random.fold_in(KEY, 1))
    check_std(np.asarray(found["a"] + again["a"] - 6, float), 0.5 * 2**0.5)
    _, _, noise = systems.dp_fedavg(0.2, 3.0, uploads=4)
    found, _ = noise.update(tree, noise.init(tree), key=KEY)
    check_std(np.asarray(found["a"] - 3, float), 3 * 0.2 / 4)


def test_every_round_and_visit_has_noise_of_its_own():
    """What nobody's gradient moves: x is the sum of the noise."""
    schedule = busy()
    schedule = schedule.replace(present=schedule.present & (np.arange(4) == 0))
    working, rule = int(schedule.working().any(axis=1).sum()), terms.sending(optax.set_to_zero())
    ends = []
    for noise in ("server", "client"):
        own = terms.sending(systems.gaussian_noise(1.0), rule) if noise == "client" else rule
        first = systems.gaussian_noise(1.0) if noise == "server" else optax.identity()
        state, _ = run(
            schedule, optax.chain(first, ccfl.cc_fedavg()), rule=own, aggregate=ccfl.mean(1),
            broken=False,
        )  # fmt: skip
        ends.append((state.params["x"] - np.arange(1, D + 1)) / working**0.5)
    ends = np.concatenate(ends)  # six standard normal numbers
    assert (np.abs(ends) < 4.5).all() and len(np.unique(ends)) == 2 * D
    assert np.abs(ends).max() > 0.3  # of equal noise in every round it would be 7 times as much


def prefix_nodes(t):
    """The nodes (level, number) that the first t rounds are made of."""
    ends = [(level, t >> level) for level in range(t.bit_length()) if t >> level & 1]
    return {(level, end - 1) for level, end in ends}


def test_prefix_sums_have_the_noise_of_a_tree():
    noise, zeros = systems.tree_noise(0.5, rounds=11), {"x": jnp.ones(MANY)}
    update = jax.jit(lambda state, key: noise.update(zeros, state, zeros, key=key))
    state, sums = noise.init(zeros), [np.zeros(MANY)]
    assert state.nodes["x"].shape == (4, MANY)
    for t in range(11):
        out, state = update(state, jax.random.fold_in(KEY, t))
        sums.append(sums[-1] + np.asarray(out["x"], float) - 1)
    for t in range(1, 12):
        check_std(sums[t], 0.5 * t.bit_count() ** 0.5)
        for r in range(1, t):  # what both share
            covariance, shared = (sums[t] * sums[r]).mean(), prefix_nodes(t) & prefix_nodes(r)
            spread = (t.bit_count() * r.bit_count() + len(shared) ** 2) ** 0.5
            assert abs(covariance - 0.25 * len(shared)) < 5 * 0.25 * spread / MANY**0.5
    out, _ = update(state, KEY)
    assert np.isnan(out["x"]).all()


@pytest.mark.parametrize(("m", "sigma"), [(40, 2.0), (10, 0.8)], ids=["m / 20", "z"])
def test_noise_of_an_adaptive_clip(m, sigma):
    """Both noises together are worth z, of few uploads too."""
    z = 0.8
    _, _, noise = systems.dp_fedavg_adaptive(z, m, rate=0.2, first_clip=0.3)
    zero = {"x": jnp.zeros(MANY)}
    state = noise.init(zero)
    out, _ = noise.update(zero, state, key=KEY)
    apart = (z**-2 - (2 * sigma) ** -2) ** -0.5
    check_std(np.asarray(out["x"], float), 0.3 * apart / m)
    few = {"x": jnp.zeros(1)}
    keys = jax.random.split(KEY, MANY)
    clips = jax.vmap(lambda key: noise.update(few, state, key=key)[1].clip)(keys)
    check_std(np.log(np.asarray(clips, float) / 0.3), 0.2 * sigma / m)
    assert np.isnan(systems.adaptive_clip(ccfl.cc_fedavg().init(few)))


def test_private_methods_refuse_what_they_cannot_do():
    refused("clip: expected a finite number > 0, found 0", systems.dp_fedavg, 0, 1, 4)
    refused(
        "noise_multiplier: expected a finite number >= 0, found -1", systems.dp_ftrl, 1, -1, 4, 5
    )
    for method, found in (((systems.dp_fedavg, 1), 0), ((systems.dp_fedavg_adaptive,), None)):
        refused(f"uploads: expected a finite number > 0, found {found}", *method, 1, found)
    refused("rounds: expected an integer from 1 to 2147483646, found 0", systems.tree_noise, 1, 0)
    refused("std: expected a finite number >= 0, found nan", systems.gaussian_noise, float("nan"))
    adaptive = systems.dp_fedavg_adaptive
    refused("quantile: expected a finite number >= 0 and <= 1, found 2", adaptive, 1, 40, 2)
    message = "count_noise: expected more than noise_multiplier / 2 = 0.5, found 0.5"
    refused(message, adaptive, 1, 10, count_noise=0.5)
    refused("rule: expected a ccfl.Rule or None, found 3", adaptive, 0, 10, rule=3)
    refused("rule: expected a ccfl.Rule or None, found 3", systems.dp_fedavg, 1, 1, 4, rule=3)


@pytest.mark.parametrize("method", ["fixed", "adaptive"])
def test_rules_whose_sum_no_clip_bounds_are_refused(method):
    def start(rule):
        if method == "fixed":
            own, aggregate, noise = systems.dp_fedavg(0.2, 0.0, 4, rule)
        else:
            own, aggregate, noise = systems.dp_fedavg_adaptive(0.0, 4, rule=rule)
        run(busy(), optax.chain(noise, ccfl.cc_fedavg()), rule=own, aggregate=aggregate)

    known = ccfl.Rule(memory=lambda params: params, shared=lambda memory: memory)
    refused(
        "rule: expected one without a mean of the clients' memories, ..., found ...", start, known
    )
    refused(
        "...: expected ... of plain uploads, found ...", start, terms.weighted(terms.by_samples)
    )
