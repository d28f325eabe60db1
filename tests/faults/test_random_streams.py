"""Every draw comes from the seed, by a stream of its own: a new consumer moves no other."""

import re
import sys
from collections import defaultdict
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import make_schedule, small_corpus

import ccfl_jax as ccfl
from ccfl_jax.clock import availability, event_clock, speed
from ccfl_jax.data.image_transforms import prepare_images
from ccfl_jax.data.synthetic import synthetic
from experiments.training import client_lists, parts

pytestmark = pytest.mark.usefixtures("quickly_compiled")
ROOT = Path(__file__).parents[2]
LABELS = np.arange(60) % 3
LAW = speed.exponential(1.0)
DEVICES = speed.Devices(np.ones(2), np.ones(2), np.ones(2), task=LAW, extra=LAW)
SERVER, ALWAYS = event_clock.Server(1, 2, "poisson", 1.0), availability.always(2)
SEEDED = {
    "iid": lambda folder, seed: ccfl.partition_iid(LABELS, 4, seed),
    "held out": lambda folder, seed: parts.held_out({"y": LABELS}, 0.2, seed),
    "unseen": lambda folder, seed: client_lists.without_unseen([LABELS], 1, seed),
    "client test": lambda folder, seed: client_lists.split([LABELS], 0.5, seed),
    "schedule": lambda folder, seed: ccfl.random_schedule(seed, 2, 20),
    "synthetic": lambda folder, seed: synthetic(2, seed=seed),
    "stackoverflow": small_corpus,
    "devices": lambda folder, seed: speed.draw_devices(seed, 3, LAW, LAW, LAW),
    "bernoulli": lambda folder, seed: next(availability.bernoulli(2, 0.5, 1.0).changes(seed)),
    "markov": lambda folder, seed: next(availability.markov(2, 1.0, 1.0).changes(seed)),
    "clock": lambda folder, seed: event_clock.clock_schedule(seed, 1, DEVICES, ALWAYS, SERVER),
}


def test_streams_of_numpy_are_named_and_distinct(monkeypatch, tmp_path):
    """What each consumer seeds its generators with: the run's seed, and a number of its own."""
    made, build = [], np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed: made.append(seed) or build(seed))
    entropies = defaultdict(set)
    for seed in (0, 1, 2, 2**32 - 1, 0x50415254):
        for name, consume in SEEDED.items():
            made.clear()
            consume(tmp_path / f"{name}{seed}", seed)
            for entropy in made:
                state = np.random.SeedSequence(entropy).generate_state(8).tobytes()
                entropies[state].add((name, repr(entropy)))
    assert all(len(users) == 1 for users in entropies.values()), entropies
    # For each seed a partition, held-out samples, unseen clients, clients' test rows, three of the
    # schedule, two clients, a draw of clients, three of the devices, two models of availability,
    # five of the clock (who starts and when, work, a task's factor and its extra seconds); and one
    # order of test clients, which hangs on no seed.
    assert len(entropies) == 5 * (1 + 1 + 1 + 1 + 3 + 2 + 1 + 3 + 2 + 5) + 1


def test_a_partition_is_not_the_schedules_first_draw():
    order = np.concatenate(ccfl.partition_iid(np.zeros(50, int), 50, 7))
    cohort = ccfl.random_schedule(7, 1, 50, buffer_size=50).client[0]
    assert not np.array_equal(order, cohort)
    assert not np.array_equal(order, np.random.default_rng(7).permutation(50))


class Shared(nn.Module):
    """Logistic regression on bytes, perhaps with dropout before it."""

    rate: float = 0.0

    @nn.compact
    def __call__(self, x, train=False):
        x = x.reshape(len(x), -1)
        return nn.Dense(3)(nn.Dropout(self.rate, deterministic=not train)(x) if self.rate else x)


def image_task(rate, augment=True):
    prepare = prepare_images(augment=augment)
    task = ccfl.classification_task(Shared(rate), (4, 4, 1), 3, prepare=prepare)
    # What was drawn, apart from what the model makes of it.
    rows = lambda _, batch, mask: {"row": ((mask * batch["row"]).sum(), mask.sum())}  # noqa: E731
    return task._replace(metrics=rows, observe=None)


def image_data():
    rng = np.random.default_rng([0])
    arrays = {
        "x": rng.integers(0, 255, (24, 4, 4, 1), dtype=np.uint8),
        "y": rng.integers(0, 3, 24, dtype=np.int32),
        "row": (2.0 ** np.arange(24)).astype(np.float32),
    }
    return ccfl.FederatedData.from_indices(arrays, np.arange(24).reshape(3, 8))


@pytest.mark.parametrize("unit", [pytest.param("epochs", marks=pytest.mark.slow), "steps"])
def test_dropout_and_crops_move_no_batch(unit):
    """Rows are powers of two, so their mean tells which were drawn, with replacement too."""
    drawn = []
    for task in (image_task(0.0, augment=False), image_task(0.5)):
        round_fn = ccfl.build_round(task, ccfl.cc_fedavg(), 0.1, 3, unit, lanes=1)
        start = ccfl.init_state(task, ccfl.cc_fedavg(), jax.random.key(0))
        schedule = make_schedule([[0, 1], [2, 0]], work=1)
        drawn.append(ccfl.run_rounds(round_fn, start, schedule, image_data())[1])
    np.testing.assert_array_equal(*(info.train_metrics["row"] for info in drawn))
    assert abs(drawn[0].train_loss - drawn[1].train_loss).max() > 1e-4


@pytest.mark.slow
def test_no_key_is_derived_for_two_purposes(monkeypatch):
    """Run as Python, step by step: what is folded into a key names one place of the code."""
    purposes, fold_in = defaultdict(set), jax.random.fold_in

    def recorded(key, number):
        caller = sys._getframe(1)
        place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        words = jax.random.key_data(key)
        if not any(isinstance(a, jax.core.Tracer) for a in (words, number)):  # but asked for shapes
            purposes[np.asarray(words).tobytes(), int(number)].add(place)
        return fold_in(key, number)

    task, data, server = image_task(0.5), image_data(), ccfl.cc_fedavg()
    round_fn = ccfl.build_round(task, server, 0.1, 3, "steps", lanes=1)
    with jax.disable_jit():
        monkeypatch.setattr(jax.random, "fold_in", recorded)
        state = ccfl.init_state(task, server, jax.random.key(5))
        slots = jax.tree.map(lambda a: jnp.asarray(a[0]), make_schedule([[1, 1]], work=2))
        round_fn(state, slots, data)
    ours = {p for places in purposes.values() for p in places if str(ROOT) in p}
    assert len(ours) >= 8  # initial model, round, client, visit, draws, step, loss, crops
    shared = {pair: places for pair, places in purposes.items() if len(places) > 1}
    assert not shared, shared


# The clock, the hash seed, the system's entropy, and generators of the process or without a seed;
# lint (NPY002) refuses NumPy's own global one. That no set's order shows is in test_determinism.
UNSEEDED = (
    r"(import|from) (random|secrets|uuid)\b|\btime\.time\(|urandom|(?<![\w.])hash\(|default_rng\(\)"
)


def test_nothing_is_drawn_but_from_a_seed():
    seen = "import random", "from random import x", "hash('a')", "time.time()", "np.default_rng()"
    assert all(re.search(UNSEEDED, line) for line in seen)
    sources = [*(ROOT / "ccfl_jax").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]
    assert len(sources) > 100
    assert not [path for path in sources if re.search(UNSEEDED, path.read_text())]
