"""Attacks against plain NumPy: what attackers send, in runs and on single rounds."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratic_clients import N, both_precisions, busy, delta, run, twin
from refusal import refused
from uploads import SLOTS, aggregated, flat, random_uploads

import ccfl_jax as ccfl
from ccfl_jax import systems, terms

ATTACKERS = np.isin(np.arange(N), (0, 4, 6))
CLIENTS = np.array([3, 0, 8, 4, 1, 4, 2, 6, 5])  # of the slots of a single round


def test_flipped_signs_against_the_median():
    schedule = busy(slots=6)

    def visit(t, xs, i, s, k, last):
        return delta(xs, t, i, s, k) * (-3 if ATTACKERS[i] else 1)

    xs = twin(schedule, visit, lambda t, x, uploads, who: x - np.median(uploads, axis=0))
    rule = terms.sending(systems.sign_flip(ATTACKERS, 3.0))
    both_precisions(schedule, xs, ccfl.cc_fedavg(), rule=rule, aggregate=systems.median())


def little(honest):
    return honest.mean(axis=0) + 1.5 * honest.std(axis=0)


def backwards(honest):
    return -0.7 * honest.mean(axis=0)


ALL_KNOWING = {
    "alie": (lambda inner: systems.alie(ATTACKERS, inner, 1.5), little),
    "ipm": (lambda inner: systems.ipm(ATTACKERS, inner, 0.7), backwards),
}


@pytest.mark.parametrize("name", ALL_KNOWING)
@pytest.mark.parametrize(
    ("inner", "of"), [(ccfl.mean(), np.mean), (systems.median(), np.median)], ids=["mean", "median"]
)
def test_attackers_who_know_all_uploads(name, inner, of):
    """An attacker who is alone in a round sends its own."""
    schedule, (attack, lie) = busy(slots=6), ALL_KNOWING[name]

    def step(t, x, uploads, who):
        u, attacks = np.array(uploads), ATTACKERS[[i for i, *_ in who]]
        if attacks.any() and not attacks.all():
            u[attacks] = lie(u[~attacks])
        return x - of(u, axis=0)

    xs = twin(schedule, lambda t, xs, *one: delta(xs, t, *one[:3]), step)
    both_precisions(schedule, xs, ccfl.cc_fedavg(), aggregate=attack(inner))


@pytest.mark.parametrize("name", ALL_KNOWING)
def test_a_round_of_any_honest_and_attackers(name, x64):
    rng, (attack, lie) = np.random.default_rng(0), ALL_KNOWING[name]
    plain, attacked = ccfl.mean(), attack(ccfl.mean())
    for share in (0.0, 0.3, 0.6, 1.0):
        counted = rng.random(SLOTS) < share
        uploads = random_uploads(rng, counted)
        u, attacks = flat(uploads)[counted], ATTACKERS[CLIENTS][counted]
        if attacks.any() and not attacks.all():
            u[attacks] = lie(u[~attacks])
        found, _ = aggregated(attacked, uploads, counted, CLIENTS)
        np.testing.assert_allclose(found, u.mean(axis=0) if len(u) else 0, rtol=1e-9, atol=1e-12)
    nobody = systems.alie(np.zeros(N, bool), systems.median(), 1.5)
    same = aggregated(systems.median(), uploads, counted, CLIENTS)[0]
    np.testing.assert_array_equal(aggregated(nobody, uploads, counted, CLIENTS)[0], same)
    only = np.isin(CLIENTS, (0, 4))
    uploads = random_uploads(rng, only)
    found, _ = aggregated(attacked, uploads, only, CLIENTS)
    np.testing.assert_allclose(found, flat(uploads)[only].mean(axis=0), rtol=1e-12)
    assert plain.stacked is False and attacked.stacked is True


def test_the_aggregator_behind_an_attack_keeps_its_memory():
    rng, counted = np.random.default_rng(0), np.ones(SLOTS, bool)
    uploads, inner = random_uploads(rng, counted), systems.centred_clipping(0.2)
    u, attacks = flat(uploads), ATTACKERS[CLIENTS]
    u[attacks] = backwards(u[~attacks])
    lied = {"a": u[:, :4].reshape(-1, 2, 2).astype("f"), "b": u[:, 4:].astype("f")}
    attacked, memories = systems.ipm(ATTACKERS, inner, 0.7), [None, None]
    for _ in range(3):
        found, memories[0] = aggregated(attacked, uploads, counted, CLIENTS, memories[0])
        known, memories[1] = aggregated(inner, lied, counted, CLIENTS, memories[1])
        np.testing.assert_allclose(found, known, rtol=1e-5, atol=1e-6)


def test_lies_too_large_for_the_numbers_are_not_sent():
    rng, counted = np.random.default_rng(0), np.ones(SLOTS, bool)
    uploads = random_uploads(rng, counted)
    uploads["a"][0] = 3e30  # its square is no float32
    for attack, _ in ALL_KNOWING.values():
        assert np.isfinite(aggregated(attack(ccfl.mean()), uploads, counted, CLIENTS)[0]).all()
    found, _ = aggregated(ALL_KNOWING["alie"][0](ccfl.mean()), uploads, counted, CLIENTS)
    np.testing.assert_allclose(found, flat(uploads).mean(axis=0), rtol=1e-4, atol=1e-5)


def sent(transform, client, seed=0, size=100_000):
    visit = SimpleNamespace(client=jnp.int32(client), key=jax.random.key(seed))
    upload = {"a": jnp.ones(size), "b": jnp.ones((size // 2, 2))}
    return transform.update(upload, transform.init(upload), upload, visit=visit)[0]


def test_noise_instead_of_an_upload():
    attack = systems.gaussian(ATTACKERS, 200.0)
    noise = sent(attack, 4)
    for a in noise.values():
        assert abs(float(a.mean())) < 200 * 5 / len(a) ** 0.5
        np.testing.assert_allclose(a.std(), 200, rtol=0.01)
    assert abs(np.corrcoef(noise["a"], noise["b"].reshape(-1))[0, 1]) < 0.02
    assert (sent(attack, 4, 1)["a"] != noise["a"]).all()
    assert (sent(attack, 3)["a"] == 1).all()
    assert (sent(attack, N + 5)["a"] == 1).all()  # beyond the end of `attackers`
    assert (sent(systems.gaussian(ATTACKERS, 0.0), 4)["b"] == 0).all()


def test_noise_does_not_depend_on_lanes():
    rule = terms.sending(systems.gaussian(ATTACKERS, 0.1))
    one, other = (run(busy(), ccfl.cc_fedavg(), rule=rule, lanes=n)[0].params for n in (1, 4))
    np.testing.assert_allclose(one["x"], other["x"], rtol=1e-5)
    plain, _ = run(busy(), ccfl.cc_fedavg())
    assert np.abs(one["x"] - plain.params["x"]).max() > 1e-3


@pytest.mark.parametrize("on_device", [False, True])
def test_flipped_labels(on_device):
    x, y = np.zeros((7, 2), "f"), np.array([0, 1, 2, 2, 1, 0, 2], np.uint8)
    lists = [[5, 1], [0, 2], [], [3, 4]]
    if on_device:
        data = ccfl.FederatedData.from_indices({"x": x, "y": y}, lists)
    else:
        flat_lists, offsets = np.concatenate(lists).astype(int), np.array([0, 2, 4, 4, 6])
        data = ccfl.FederatedData.from_offsets({"x": x, "y": y}, flat_lists, offsets)
    found = systems.label_flip(data, [True, False, True, True], 3)
    np.testing.assert_array_equal(found.arrays["y"], [0, 1, 2, 0, 1, 2, 2])
    assert type(found.arrays["y"]) is type(data.arrays["y"])
    assert found.arrays["y"].dtype == np.uint8 and found.arrays["x"] is data.arrays["x"]
    np.testing.assert_array_equal(data.arrays["y"], y)


def test_attackers_are_chosen_by_a_seed():
    for n, share, number in ((10, 0.2, 2), (9, 1.0, 9), (9, 0.0, 0), (7, 0.5, 4), (3, 0.2, 1)):
        found = systems.chosen(n, share, 3)
        assert found.shape == (n,) and found.dtype == bool and found.sum() == number
    assert (systems.chosen(1000, 0.3, 0) != systems.chosen(1000, 0.3, 1)).any()
    often = np.mean([systems.chosen(5, 0.4, seed) for seed in range(2000)], axis=0)
    np.testing.assert_allclose(often, 0.4, atol=0.05)


def test_later_writes_change_no_attacker():
    flags = ATTACKERS.copy()
    attack = systems.sign_flip(flags)
    flags[:] = False
    assert (sent(attack, 4, size=2)["a"] == -1).all()


def test_what_attacks_refuse():
    for attack in (systems.sign_flip, systems.gaussian):
        message = "attackers: expected bools [clients], found int64 (2,)"
        refused(message, attack, np.array([0, 1]), 1.0)
    for attack in (systems.alie, systems.ipm):
        message = "attackers: expected bools [clients], found bool (3, 3)"
        refused(message, attack, np.zeros((3, 3), bool), ccfl.mean(), 1.0)
        refused("aggregate: expected a ccfl.Aggregate, found 3", attack, ATTACKERS, 3, 1.0)
    message = "attackers: expected bools [clients], found float64 (0,)"
    refused(message, systems.sign_flip, [])
    refused("scale: expected a finite number >= 0, found -1", systems.sign_flip, ATTACKERS, -1)
    refused("std: expected a finite number >= 0, found nan", systems.gaussian, ATTACKERS, np.nan)
    message = "z: expected a finite number, found inf"
    refused(message, systems.alie, ATTACKERS, ccfl.mean(), np.inf)
    message = "epsilon: expected a finite number >= 0, found -0.1"
    refused(message, systems.ipm, ATTACKERS, ccfl.mean(), -0.1)
    refused("num_clients: expected an integer >= 1, found 0", systems.chosen, 0, 0.5, 0)
    refused("share: expected a finite number >= 0 and <= 1, found 1.5", systems.chosen, 3, 1.5, 0)
    refused("seed: expected an integer ..., found -1", systems.chosen, 3, 0.5, -1)
    message = "aggregate: expected uploads of equal weight, found weighted ones (the rule's)"
    aggregate = systems.ipm(ATTACKERS, ccfl.mean(), 0.5)
    rule = terms.weighted(terms.by_samples)
    refused(message, run, busy(), ccfl.cc_fedavg(), rule=rule, aggregate=aggregate)


def test_labels_that_cannot_be_flipped_are_refused():
    x, y = np.zeros((4, 2), "f"), np.array([0, 1, 2, 2])
    data = ccfl.FederatedData.from_indices({"x": x, "y": y}, [[0, 1], [1, 2]])
    flags = np.array([True, False])
    refused("data: expected a ccfl.FederatedData, found 3", systems.label_flip, 3, flags, 3)
    message = "attackers: expected 2, one a client, found 9"
    refused(message, systems.label_flip, data, ATTACKERS, 3)
    message = "attackers: expected rows of their own, found 1 that honest clients have too (row 1)"
    refused(message, systems.label_flip, data, flags, 3)
    both = np.ones(2, bool)
    message = "labels of the attackers: expected 0 to 1, found label 2 (1 times)"
    refused(message, systems.label_flip, data, both, 2)
    bare = ccfl.FederatedData.from_indices({"x": x}, [[0, 1], [2]])
    refused("arrays: expected labels 'y', found x", systems.label_flip, bare, flags, 3)
