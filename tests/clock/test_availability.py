"""Availability: blocks that follow each other, models checked by hand, frequencies, masks."""

from collections import deque
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusal import refused

from ccfl_jax.clock import availability as there

DAY = 86_400.0


def blocks(model, seed, until):
    """The blocks up to the one that ends after `until`."""
    for block in model.changes(seed):
        yield block
        if block.end > until:
            return


def changes(model, until, seed=0):
    """All changes before `until` as (time, client, available)."""
    found = (change for b in blocks(model, seed, until) for change in zip(*b[1:], strict=True))
    return [change for change in found if change[0] < until]


def available(model, times, seed=0):
    """bool [times, clients]: the slow twin of `masks`, change by change from away."""
    state, out = [False] * model.num_clients, []
    listed = deque(changes(model, times[-1] + 1.0, seed))
    for time in times:
        while listed and listed[0][0] <= time:
            _, client, what = listed.popleft()
            state[client] = what
        out.append(list(state))
    return np.array(out)


def check_blocks(model, seed, until):
    state, end = np.zeros(model.num_clients, bool), 0.0
    for block in blocks(model, seed, until):
        _, time, client, what = block
        assert (time.dtype, client.dtype, what.dtype) == ("f8", "i4", "?")
        assert block.end > end and np.all((time >= end) & (time < block.end))
        later, beside = np.diff(time), np.diff(client)
        assert np.all((later > 0) | ((later == 0) & (beside > 0)))  # once per client and time
        order = np.lexsort((time, client))
        client, what = client[order], what[order]
        first = np.diff(client, prepend=-1) > 0
        before = np.where(first, state[client], np.roll(what, 1))
        assert np.all(what != before)  # a real change, and at first from away
        state[client] = what
        end = block.end


seconds = st.floats(20.0, 1e5)


@st.composite
def models(draw):
    n = draw(st.integers(1, 6))

    def each(values):
        return np.array(draw(st.lists(values, min_size=n, max_size=n)))

    def cyclic():
        period, share = each(seconds), each(st.sampled_from([0.01, 0.1, 1 / 3, 0.5, 0.98, 1.0]))
        return there.cyclic(n, period, period * share, each(st.floats(-1e6, 1e6)))

    hours, zones, labels = st.floats(1, 24), st.integers(-12, 14), st.integers(0, 3)
    kinds = [
        lambda: there.always(n),
        lambda: there.bernoulli(n, np.append(each(st.floats(0, 1))[1:], 0.5), draw(seconds)),
        cyclic,
        lambda: there.diurnal(each(zones), draw(st.floats(0, 24)), draw(hours)),
        lambda: there.markov(n, each(seconds), each(seconds)),
        lambda: there.by_label(each(labels), 4, draw(seconds)),
        lambda: there.windows(*draw(traces(n))),
    ]
    return draw(st.sampled_from(kinds))()


@st.composite
def traces(draw, n):
    edges = [draw(st.lists(st.integers(0, 40), min_size=2, unique=True)) for _ in range(n)]
    rows = [(c, *pair) for c, e in enumerate(edges) for pair in pairwise(sorted(e))]
    rows = [row for k, row in enumerate(rows) if k == 0 or draw(st.booleans())]
    client, start, stop = np.array(draw(st.permutations(rows))).T
    return client, start, stop, [max(e) + draw(st.sampled_from([0, 5])) for e in edges]


@given(models(), st.integers(0, 2**32 - 1))
def test_blocks_follow_each_other_and_changes_alternate(model, seed):
    check_blocks(model, seed, 3e5)


@given(models(), st.integers(0, 5), st.sampled_from([0.25, 7.0, 3600.0, 1e5]))
def test_masks_agree_with_the_slow_twin(model, seed, step):
    found = np.array(list(there.masks(model, seed, 6, step)))
    assert found.dtype == bool
    np.testing.assert_array_equal(found, available(model, np.arange(6) * step, seed))


@pytest.mark.parametrize("model", [
    there.bernoulli(30_000, 0.5, 60.0), there.markov(30_000, 90.0, 30.0), there.markov(1, 1.0, 2.0),
    there.cyclic(40_000, 100.0, 30.0, np.arange(40_000) / 400.0),
    there.windows(np.arange(40_000), np.arange(40_000) % 7, np.full(40_000, 8), [60] * 40_000),
])  # fmt: skip
def test_large_models_come_in_many_blocks(model):
    until = 450.0 if model.num_clients > 1 else 200_000.0
    assert sum(1 for _ in blocks(model, 1, until)) >= 3
    check_blocks(model, 1, until)


def test_everybody_is_there_at_once_and_stays():
    assert changes(there.always(3), 10 * DAY) == [(0.0, c, True) for c in range(3)]
    found = list(there.masks(there.always(2), 0, 2, 1.0))
    found[0][:] = False  # a mask is the caller's own
    assert found[1].all()


def test_a_phase_that_rounds_to_a_whole_cycle_is_its_beginning():
    assert np.mod(-1e-20, 10.0) == 10.0
    listed = changes(there.cyclic(2, 10.0, [4.0, 10.0], -1e-20), 11.0)
    assert listed == [(0.0, 0, True), (0.0, 1, True), (4.0, 0, False), (10.0, 0, True)]


PHASES, SHARES = np.array([0.0, 3.0, 8.0, 5.0]), np.array([4.0, 4.0, 4.0, 10.0])
ZONES, LABELS = np.array([0, 9, -7]), np.array([0, 1, 2, 2, 1])


@pytest.mark.parametrize(("model", "step", "formula"), [
    (there.cyclic(4, 10.0, SHARES, PHASES), 0.5, lambda t: (t + PHASES) % 10 < SHARES),
    (there.diurnal(ZONES), 600.0, lambda t: (t / 3600 + ZONES - 22) % 24 < 8),
    (there.by_label(LABELS, 3, 12.0), 0.5, lambda t: np.floor(3 * (t % 12) / 12) == LABELS),
])  # fmt: skip
def test_cycles_follow_their_formulas(model, step, formula):
    """From 22 to 6 o'clock of each zone; each label's third of the period."""
    found = list(there.masks(model, 0, 500, step))
    np.testing.assert_array_equal(found, [formula(t * step) for t in range(500)])


def test_a_trace_is_replayed_modulo_each_clients_period():
    """Client 0: [5, 10) and [0, 2) of 10, one visit over the turn; client 1: [1, 3) of 4."""
    model = there.windows([0, 1, 0, 1], [5, 2, 0, 1], [10, 3, 2, 2], [10, 4, 7])
    assert model.num_clients == 3
    assert changes(model, 13.0) == [
        (0.0, 0, True), (1.0, 1, True), (2.0, 0, False), (3.0, 1, False), (5.0, 0, True),
        (5.0, 1, True), (7.0, 1, False), (9.0, 1, True), (11.0, 1, False), (12.0, 0, False),
    ]  # fmt: skip
    whole = there.windows([0, 0], [0, 3], [3, 6], [6])
    assert changes(whole, 1e6) == [(0.0, 0, True)]


def test_bernoulli_frequencies():
    """4,000 independent draws for each p: five standard errors, 8 in ten million for the set."""
    p = np.array([0.0, 0.05, 0.3, 0.5, 0.9, 1.0])
    drawn = np.array(list(there.masks(there.bernoulli(6, p, 60.0), 7, 4000, 60.0)), float)
    bound = 5 * np.sqrt(p * (1 - p) / 4000)
    assert np.all(abs(drawn.mean(axis=0) - p) <= bound)
    # Anew in each period, and for each client: products of neighbours have mean p^2 and p q.
    later = (drawn[1:, 1:5] * drawn[:-1, 1:5]).mean(axis=0)
    beside = (drawn[:, 1:4] * drawn[:, 2:5]).mean(axis=0)
    for product, mean in ((later, p[1:5] ** 2), (beside, p[1:4] * p[2:5])):
        assert np.all(abs(product - mean) <= 5 * np.sqrt(3 * mean / 4000))  # its neighbours overlap


def test_markov_is_stationary_with_its_covariance():
    """40,000 independent clients: q at 0 and later, and q (1 - q) exp(-lag (1/on + 1/off))."""
    n, on, off = 40_000, 30.0, 60.0
    seen = np.array(list(there.masks(there.markov(n, on, off), 11, 25, 7.0)), float)
    q = on / (on + off)
    assert np.all(abs(seen.mean(axis=1) - q) <= 5 * np.sqrt(q * (1 - q) / n))
    for lag in (1, 3, 8, 24):
        expected = q * (1 - q) * np.exp(-7.0 * lag * (1 / on + 1 / off))
        found = ((seen[0] - q) * (seen[lag] - q)).mean()
        assert abs(found - expected) <= 5 * 0.25 / np.sqrt(n)  # a product deviates by below 1/4


def test_markov_holds_each_state_for_each_clients_mean():
    """An exponential time's standard deviation is its mean, and P(time > 2 means) = exp(-2)."""
    made = blocks(there.markov(2, [0.3, 4.0], [0.8, 2.0]), 5, 40_000.0)
    time, client, what = map(np.concatenate, zip(*(block[1:] for block in made), strict=True))
    for own, on, off in ((client == 0, 0.3, 0.8), (client == 1, 4.0, 2.0)):
        held, available = np.diff(time[own]), what[own][:-1]
        for times, mean in ((held[available], on), (held[~available], off)):
            assert times.size > 5_000
            assert abs(times.mean() / mean - 1) < 5 / np.sqrt(times.size)
            assert abs((times > 2 * mean).mean() - np.exp(-2)) < 5 * np.sqrt(0.117 / times.size)


@pytest.mark.parametrize("model", [there.bernoulli(20, 0.4, 60.0), there.markov(20, 50.0, 90.0)])
def test_a_seed_gives_its_blocks(model):
    first, again, other = (list(islice(model.changes(seed), 3)) for seed in (3, 3, 4))
    for a, b in zip(first, again, strict=True):
        assert a.end == b.end and all(map(np.array_equal, a[1:], b[1:]))
    assert not np.array_equal(first[0].time, other[0].time)


ALWAYS, ZONE = there.always(1), np.array([0])
SEED = "seed: expected an integer from 0 to 4294967295, found "
SHAPE = "numbers of shape () or (2,)"
WINDOW = "window of client 0: expected within the period, windows of at least 0.001 s, ..., found "


@pytest.mark.parametrize(("call", "arguments", "message"), [
    (there.always, [0], "num_clients: expected an integer from 1 to 2147483647, found 0"),
    (there.bernoulli, [2, 1.5, 1.0], "p: expected 0.0 to 1.0, found 1.5"),
    (there.bernoulli, [2, [0.5, np.nan], 1.0], "p: expected 0.0 to 1.0, found nan"),
    (there.bernoulli, [2, [0.5] * 3, 1.0], f"p: expected {SHAPE}, found float64 (3,)"),
    (there.bernoulli, [2, 0.0, 1.0], "p: expected a number > 0 for at least ..., found none"),
    (there.bernoulli, [2, 0.5, 0.0], "period: expected a finite number >= ..., found 0.0"),
    (there.cyclic, [2, 10.0, 11.0], "on: expected the period, ..., found 11.0 of a ..."),
    (there.cyclic, [2, 10.0, 0.0], "on: expected 0.001 to 1000000000000.0, found 0.0"),
    (there.cyclic, [2, 10.0, 5.0, np.inf], "phase: expected -1000... to ..., found inf"),
    (there.diurnal, [3], "zones: expected [clients], at least one, found shape ()"),
    (there.diurnal, [ZONE + 99], "zones: expected -24.0 to 24.0, found 99"),
    (there.diurnal, [ZONE, 22, 25], "hours: expected 0.001 to 24.0, found 25"),
    (there.markov, [2, 0.0, 1.0], "mean_on: expected 0.001 to 1000000000000.0, found 0.0"),
    (there.markov, [2, 1.0, "a"], f"mean_off: expected {SHAPE}, found <U1 ()"),
    (there.by_label, [np.array([0, 3]), 3, 1.0], "labels: expected 0 to 2, found 0 to 3"),
    (there.by_label, [ZONE / 2, 3, 1.0], "labels: expected integers ..., found float64 (1,)"),
    (there.windows, [[], [], [], [1]], "client: expected some integers, found float64 (0,)"),
    (there.windows, [[1], [0], [1], [1]], "client: expected 0 to 0, found 1 to 1"),
    (there.windows, [[0], [0], [2], [1]], WINDOW + "[0.0, 2.0) of a period of 1.0, ..."),
    (there.windows, [[0], [1], [1], [2]], WINDOW + "[1.0, 1.0) of a period of 2.0, ..."),
    (there.windows, [[0, 0], [0, 1], [2, 3], [4]], WINDOW + "[0.0, 2.0) ... -1.0 to the next"),
    (there.windows, [[0], [-1], [1], [1]], "start: expected 0.0 to 1000000000000.0, found -1"),
    (there.windows, [[0], [0, 1], [1], [1]], "windows: expected ..., found shapes [(1,), ..."),
    (there.masks, [ALWAYS, 0, -1, 1.0], "rounds: expected an integer from 0 ..., found -1"),
    (there.masks, [ALWAYS, 0, 1, 0.0], "seconds: expected a finite number > 0 ..., found 0.0"),
    (there.masks, [ALWAYS, -1, 1, 1.0], SEED + "-1"),
    (ALWAYS.changes, [2**32], SEED + "4294967296"),
])  # fmt: skip
def test_what_is_refused_is_named(call, arguments, message):
    refused(message, call, *arguments)
