"""Robust aggregators against plain NumPy: in runs, on single rounds, and what each promises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import mesh_of
from quadratic_clients import D, both_precisions, busy, delta, run, twin
from refusal import refused
from uploads import SLOTS, aggregated, flat, random_uploads

import ccfl_jax as ccfl
from ccfl_jax import systems, terms


def trimmed(u, share=0.25):
    cut = int(share * len(u) + 1e-9)
    return np.sort(u, axis=0)[cut : len(u) - cut].mean(axis=0)


def scores(u, f):
    far = [sorted(((a - b) ** 2).sum() for j, b in enumerate(u) if j != i) for i, a in enumerate(u)]
    return np.array([sum(one[: max(len(u) - f - 2, 1)]) for one in far])


def krum(u, f=1, chosen=1):
    return u[np.argsort(scores(u, f), kind="stable")[:chosen]].mean(axis=0)


def bulyan(u, f=1):
    left, picked = [*u], []
    for _ in range(max(len(u) - 2 * f, 1)):
        picked.append(left.pop(int(scores(np.array(left), f).argmin())))
    picked = np.array(picked)
    keep = len(picked) - 2 * min(f, (len(picked) - 1) // 2)
    far = np.abs(picked - np.median(picked, axis=0))
    return np.take_along_axis(picked, far.argsort(axis=0)[:keep], axis=0).mean(axis=0)


def weiszfeld(u, iterations=4, smoothing=0.05):
    v = u.mean(axis=0)
    for _ in range(iterations):
        beta = 1 / np.maximum(smoothing, np.linalg.norm(u - v, axis=1))
        v = beta @ u / beta.sum()
    return v


def clipped(u, radius):
    return np.array([a * min(1, radius / max(np.linalg.norm(a), 1e-99)) for a in u])


def clip_around(v, u, radius=0.2, iterations=2):
    for _ in range(iterations):
        v = v + clipped(u - v, radius).mean(axis=0)
    return v


# name -> the aggregator, and the same of uploads [m, d] in NumPy.
TWINS = {
    "median": (systems.median(), lambda u: np.median(u, axis=0)),
    "trimmed_mean": (systems.trimmed_mean(0.25), trimmed),
    "krum": (systems.krum(1), krum),
    "multi_krum": (systems.krum(1, chosen=3), lambda u: krum(u, chosen=3)),
    "bulyan": (systems.bulyan(1), bulyan),
    "geometric_median": (systems.geometric_median(4, 0.05), weiszfeld),
    "norm_bound": (systems.norm_bound(0.3), lambda u: clipped(u, 0.3).mean(axis=0)),
    "centred_clipping": (systems.centred_clipping(0.2, 2), lambda u: clip_around(0, u)),
}
FEW = [*(TWINS.keys() - {"centred_clipping"})]


@pytest.mark.parametrize("name", sorted(FEW))
def test_a_run_is_that_of_numpy(name):
    """Rounds of nobody up to eight uploads; absent, rejected, twice in a round."""
    aggregate, of = TWINS[name]
    schedule = busy(slots=8)
    xs = twin(
        schedule,
        lambda t, xs, *one: delta(xs, t, *one[:3]),
        lambda t, x, uploads, who: x - of(np.array(uploads)),
    )
    both_precisions(schedule, xs, ccfl.cc_fedavg(), aggregate=aggregate)


def test_a_run_of_centred_clipping_is_that_of_numpy():
    schedule, center = busy(slots=5), np.zeros(D)

    def step(t, x, uploads, who):
        nonlocal center
        center = clip_around(center, np.array(uploads))
        return x - center

    xs = twin(schedule, lambda t, xs, *one: delta(xs, t, *one[:3]), step)
    aggregate = TWINS["centred_clipping"][0]
    both_precisions(schedule, xs, ccfl.cc_fedavg(), aggregate=aggregate, pieces=[(0, 7), (7, 50)])
    spread, _ = run(schedule, ccfl.cc_fedavg(), aggregate=aggregate, mesh=mesh_of(4), lanes=1)
    np.testing.assert_allclose(spread.params["x"], xs[-1], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(spread.aggregate["x"], center, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", sorted(TWINS))
def test_a_round_is_that_of_numpy(name, x64):
    """Of any number of uploads, in any slots, over two arrays; what is not counted is nan."""
    aggregate, of = TWINS[name]
    rng = np.random.default_rng(0)
    for count in range(SLOTS + 1):
        counted = rng.permutation(np.arange(SLOTS) < count)
        uploads = random_uploads(rng, counted)
        found, _ = aggregated(aggregate, uploads, counted)
        expected = of(flat(uploads)[counted]) if count else np.zeros(5)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["median", "trimmed_mean", "bulyan", "krum"])
def test_many_slots_are_sorted_otherwise_and_are_the_same(name, x64):
    aggregate, of = TWINS[name]
    rng = np.random.default_rng(1)
    for share in (0.9, 1.0):
        counted = rng.random(40) < share
        uploads = random_uploads(rng, counted)
        found, _ = aggregated(aggregate, uploads, counted)
        np.testing.assert_allclose(found, of(flat(uploads)[counted]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", sorted(TWINS.keys() - {"bulyan"}))
@given(st.integers(0, 2**32 - 1), st.sampled_from([1.0, 1e-3, 1e12]))
def test_the_order_of_slots_does_not_matter(name, seed, scale):
    rng = np.random.default_rng(seed)
    counted = rng.random(SLOTS) < 0.8
    uploads = random_uploads(rng, counted, scale)
    order = rng.permutation(SLOTS)
    found, _ = aggregated(TWINS[name][0], uploads, counted)
    other, _ = aggregated(TWINS[name][0], {k: a[order] for k, a in uploads.items()}, counted[order])
    if name in ("krum", "multi_krum") and counted.sum() < 6:
        return  # two that are nearest to each other have one score, and the lower slot is taken
    np.testing.assert_allclose(found, other, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("name", sorted(TWINS))
@given(st.integers(0, 2**32 - 1), st.sampled_from([1e3, 1e20, 3e38]))
def test_one_attacker_of_nine_does_not_decide(name, seed, size):
    """Whatever finite number it sends; those who average over all are bounded otherwise."""
    rng = np.random.default_rng(seed)
    counted = np.ones(SLOTS, bool)
    uploads = random_uploads(rng, counted)
    attacker = rng.integers(SLOTS)
    for a in uploads.values():
        a[attacker] = size * rng.choice([-1, 1], a[attacker].shape)
    found, _ = aggregated(TWINS[name][0], uploads, counted)
    assert np.isfinite(found).all()
    honest = np.delete(flat(uploads), attacker, axis=0)
    if name in ("median", "trimmed_mean", "krum", "multi_krum", "bulyan"):
        assert (found >= honest.min(axis=0) - 1e-6).all()
        assert (found <= honest.max(axis=0) + 1e-6).all()
    if name == "krum":
        assert (np.abs(honest - np.asarray(found)).max(axis=1) < 1e-6).any()
    if name == "norm_bound":
        assert np.linalg.norm(found) <= 0.3 * (1 + 1e-6)
    if name == "centred_clipping":
        assert np.linalg.norm(found) <= 2 * 0.2 * (1 + 1e-6)


@pytest.mark.parametrize("name", sorted(TWINS))
def test_numbers_at_their_ends_make_no_nan(name):
    uploads = random_uploads(np.random.default_rng(0), np.ones(SLOTS, bool))
    for size in (3.4e38, 1e-40):
        for opposite in range(SLOTS + 1):
            for a in uploads.values():
                a[:opposite], a[opposite:] = -size, size
            found, memory = aggregated(TWINS[name][0], uploads, np.ones(SLOTS, bool))
            found, _ = aggregated(TWINS[name][0], uploads, np.ones(SLOTS, bool), memory=memory)
            assert np.isfinite(found).all()


def test_weiszfeld_comes_to_the_least_sum_of_distances(x64):
    rng = np.random.default_rng(0)
    uploads = random_uploads(rng, np.ones(SLOTS, bool))
    uploads["b"][3] += 1e6
    u = flat(uploads)
    found = np.asarray(
        aggregated(systems.geometric_median(300, 1e-9), uploads, np.ones(SLOTS, bool))[0]
    )
    pull = (u - found) / np.linalg.norm(u - found, axis=1)[:, None]
    assert np.linalg.norm(pull.sum(axis=0)) < 1e-6
    alone = np.arange(SLOTS) == 2
    found, _ = aggregated(systems.geometric_median(), uploads, alone)
    np.testing.assert_allclose(found, u[2], rtol=1e-12)


def test_uploads_that_agree_stay_what_they_are():
    same = {"a": np.full((SLOTS, 2, 2), 0.1, "f"), "b": np.zeros((SLOTS, 1), "f")}
    for name in FEW:
        found, _ = aggregated(TWINS[name][0], same, np.ones(SLOTS, bool))
        np.testing.assert_allclose(found, [0.1] * 4 + [0], rtol=1e-6)
    nothing = {"a": np.zeros((SLOTS, 2, 2), "f"), "b": np.zeros((SLOTS, 1), "f")}
    for aggregate, _ in TWINS.values():
        assert (aggregated(aggregate, nothing, np.ones(SLOTS, bool))[0] == 0).all()


def test_numbers_may_be_arguments_of_the_program():
    rng = np.random.default_rng(0)
    counted = np.ones(SLOTS, bool)
    uploads = random_uploads(rng, counted)
    makers = [(systems.trimmed_mean, 0.25), (systems.norm_bound, 0.3),
              (systems.centred_clipping, 0.2)]  # fmt: skip
    for maker, number in makers:
        traced = jax.jit(lambda one, maker=maker: aggregated(maker(one), uploads, counted)[0])
        known, _ = aggregated(maker(number), uploads, counted)
        np.testing.assert_allclose(traced(jnp.float32(number)), known, rtol=1e-5, atol=1e-7)


def test_a_share_of_a_whole_number_is_whole():
    u = {"a": np.arange(100.0, dtype="f")[:, None] ** 2}
    for share, cut in ((0.29, 29), (0.07, 7), (0.499999, 49), (0.0, 0)):
        found, _ = aggregated(systems.trimmed_mean(share), u, np.ones(100, bool))
        np.testing.assert_allclose(found, (np.arange(cut, 100 - cut) ** 2.0).mean(), rtol=1e-5)


def test_arguments_out_of_range_are_refused():
    refused(
        "share: expected a finite number >= 0 and < 0.5, found -0.1", systems.trimmed_mean, -0.1
    )
    refused("share: expected a finite number >= 0 and < 0.5, found 0.5", systems.trimmed_mean, 0.5)
    refused("byzantine: expected an integer >= 0, found -1", systems.krum, -1)
    refused("chosen: expected an integer >= 1, found 0", systems.krum, 1, 0)
    refused("byzantine: expected an integer >= 0, found 1.0", systems.bulyan, 1.0)
    refused("iterations: expected an integer >= 1, found 0", systems.geometric_median, 0)
    message = "smoothing: expected a finite number > 0, found 0"
    refused(message, systems.geometric_median, smoothing=0)
    refused("radius: expected a finite number > 0, found 0.0", systems.centred_clipping, 0.0)
    refused("iterations: expected an integer >= 1, found -1", systems.centred_clipping, 1, -1)
    refused("bound: expected a finite number > 0, found inf", systems.norm_bound, float("inf"))


def test_buffers_that_are_too_small_are_refused():
    def in_a_run(aggregate, rule=None):
        return run(busy(), ccfl.cc_fedavg(), aggregate=aggregate, rule=rule)

    refused("slots: expected at least 5 for krum(1, chosen=1), found 4", in_a_run, systems.krum(1))
    message = "slots: expected at least 6 for krum(0, chosen=6), found 4"
    refused(message, in_a_run, systems.krum(0, 6))
    refused("slots: expected at least 7 for bulyan(1), found 4", in_a_run, systems.bulyan(1))
    message = "aggregate: expected uploads of equal weight, found weighted ones (the rule's)"
    by_size = terms.weighted(terms.by_samples)
    for aggregate in (systems.centred_clipping(1.0), systems.norm_bound(1.0)):
        refused(message, in_a_run, aggregate, by_size)
