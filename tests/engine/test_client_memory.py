"""What clients remember, in every way to run, and in every precision."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.tree_util import Partial
from problems import assert_trees_close, assert_trees_equal, counting, mesh_of, run_pieces
from quadratic_clients import BROKEN, DELAY, RATE, ROUNDS, SIZES, D, N, busy, data, task
from refusal import refused

import ccfl_jax as ccfl
from ccfl_jax import systems, terms
from ccfl_jax.engine import streaming
from ccfl_jax.engine.run import loop, padded
from ccfl_jax.runs import checkpoints

pytestmark = pytest.mark.usefixtures("quickly_compiled")

SERVER = ccfl.cc_fedsgd(0.9)
FEEDBACK = systems.with_error_feedback(systems.top_k(0.34))
RULES = {
    "scaffold": lambda rate: systems.scaffold(rate),
    "feddyn": lambda rate: systems.feddyn(5 * rate),
    "mifa": lambda rate: systems.mifa(wait=False),
    "feedback": lambda rate: terms.sending(FEEDBACK, systems.scaffold(rate)),
}
RATES = np.array([0.1, 0.02, 0.05], np.float32)


def halves(seed):
    """Clients 0 to 4 until round 25, then the others, who get the rows of those in a plan."""
    schedule = busy(seed=seed)
    early = np.arange(ROUNDS)[:, None] < 25
    return schedule.replace(present=schedule.present & (early == (schedule.client < 5)))


RING, SCHEDULES = halves(1), [halves(seed).remembered() for seed in (1, 2, 3)]
ROWS = max(one.memory_rows() for one in SCHEDULES)


def simulated(rule, rate=RATE, lanes=2):
    return ccfl.simulation(task(), SERVER, rate, 1, "steps", "none", lanes=lanes, rule=rule)


def started(simulation, memories=None, seed=0):
    """On its device, as a restored state is: both run the same program."""
    state = simulation.init(jax.random.key(seed), DELAY + 1, N, memories)
    return jax.device_put(state, jax.devices()[0])


def pick(tree, k):
    return jax.tree.map(lambda a: a[k], tree)


@pytest.mark.parametrize("name", RULES)
def test_trials_have_memories_of_their_own(name):
    """One plan for all, or one each; other rates compile nothing, those of a rule neither."""

    def round_at(rate, *state_slots_data):
        return simulated(RULES[name](rate), rate).round(*state_slots_data)

    keys = jax.vmap(jax.random.key)(jnp.arange(3))
    init = simulated(RULES[name](RATE)).init
    states = jax.vmap(lambda key: init(key, DELAY + 1, N, ROWS))(keys)
    for schedules, how in (
        ([SCHEDULES[0]] * 3, {"together": 1}),
        (SCHEDULES, {"together": 2, "mesh": mesh_of(2)}),
    ):
        singles = [
            ccfl.run_rounds(Partial(round_at, RATES[k]), pick(states, k), schedules[k], data())
            for k in range(3)
        ]
        counted, traces = counting(round_at)
        for order in (np.arange(3), np.array([2, 0, 1])):
            each = schedules[0] if "mesh" not in how else [schedules[k] for k in order]
            trials = Partial(counted, RATES[order])
            found = ccfl.run_trials(trials, pick(states, order), each, data(), **how)
            for place, k in enumerate(order):
                assert_trees_close(pick(found, place), singles[k], 2e-5)
        assert len(traces) == 1
    assert singles[0][1].rejected.sum() > 0 and ROWS < N - 1


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_a_checkpoint_holds_memories_messages_and_sums(tmp_path, name, planned):
    schedule, simulation = SCHEDULES[0] if planned else RING, simulated(RULES[name](RATE))
    rows = schedule.memory_rows() if planned else None
    whole, _ = ccfl.run_rounds(simulation.round, started(simulation, rows), schedule, data())
    half = schedule.rounds(0, 23)
    half, _ = ccfl.run_rounds(simulation.round, started(simulation, rows), half, data())
    kept = checkpoints.open_checkpoints(tmp_path)
    checkpoints.save(kept, half)
    found, broken = checkpoints.restore(kept, started(simulation, rows, seed=1))
    checkpoints.close(kept)
    assert not broken
    assert_trees_equal(found.state, half)
    rest = schedule.rounds(23, ROUNDS)
    end, _ = ccfl.run_rounds(simulation.round, found.state, rest, data())
    assert_trees_equal(end, whole)
    assert any(np.any(leaf) for leaf in jax.tree.leaves(half.clients))


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_a_streamed_run_is_the_run_bit_for_bit(name, planned):
    schedule, simulation = SCHEDULES[0] if planned else RING, simulated(RULES[name](RATE))
    rows = schedule.memory_rows() if planned else None
    state = started(simulation, rows)
    whole = ccfl.run_rounds(simulation.round, state, schedule, data())
    memory = 2 * (4 * (N + 1) + 14 * (2 * 4 * D + 4))  # bytes, of offsets and 14 samples
    assert len(streaming.cut(schedule, data(), memory).starts) > 5
    pieces = ccfl.stream_rounds(schedule, data(), memory)
    states, infos = run_pieces(simulation.round, state, pieces)
    assert_trees_equal((states[-1], infos), whole)


@pytest.mark.parametrize("name", RULES)
def test_a_donated_state_ends_the_same_and_is_gone(name):
    simulation, schedule = simulated(RULES[name](RATE)), SCHEDULES[0]
    rows = schedule.memory_rows()
    kept = ccfl.run_rounds(simulation.round, started(simulation, rows), schedule, data())
    state = started(simulation, rows)
    donated = ccfl.run_rounds(simulation.round, state, schedule, data(), donate=True)
    assert_trees_equal(donated, kept)
    parts = state.clients, state.shared, state.history.messages, state.params
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(parts))
    refused("Array has been deleted...", np.asarray, jax.tree.leaves(parts)[0], kind=RuntimeError)


def test_a_state_that_holds_an_array_twice_can_be_donated_and_the_users_stays():
    mine = jnp.arange(1.0, D + 1)
    keeps = optax.GradientTransformation(
        lambda params: (params, params), lambda updates, state, params=None: (updates, state)
    )
    problem = task()._replace(init=lambda key: {"x": mine, "y": mine})
    rule = ccfl.Rule(memory=lambda params: (params, mine))
    simulation = ccfl.simulation(problem, keeps, RATE, 1, "steps", rule=rule)
    states = [simulation.init(jax.random.key(0), DELAY + 1, N) for _ in range(2)]
    ends = [
        ccfl.run_rounds(simulation.round, state, RING, data(), donate=donate)
        for state, donate in zip(states, (False, True), strict=True)
    ]
    assert_trees_equal(*ends)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(states[1].params))
    np.testing.assert_array_equal(mine, [1, 2, 3])


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_round_copies_no_memories(lanes):
    """10,000 clients: compiled rounds need less than a tenth of their memories besides."""
    simulation, many = simulated(systems.scaffold(RATE), lanes=lanes), 10_000
    state = jax.eval_shape(lambda: simulation.init(jax.random.key(0), DELAY + 1, many))
    schedule = RING.replace(num_clients=many)
    lists = [[k % SIZES.sum()] for k in range(many)]
    world = ccfl.FederatedData.from_indices(data(broken=False).arrays, lists)
    slots, rounds = padded(schedule)

    def whole(state):
        return loop(simulation.round, ((), {}), state, slots, jnp.asarray(rounds), world)

    memory = jax.jit(whole, donate_argnums=0).lower(state).compile().memory_analysis()
    new = memory.output_size_in_bytes - memory.alias_size_in_bytes
    nbytes = many * D * 4
    assert memory.temp_size_in_bytes + new < nbytes / 10 + ROUNDS * 1000


def counts(schedule, sizes):
    """A client's memory is the number of rounds that counted it: in NumPy."""
    found = np.zeros(N, int)
    for t in range(schedule.num_rounds):
        here = schedule.client[t][schedule.working()[t]]
        found += [i in here and sizes[i] > 0 and i != BROKEN for i in range(N)]
    return found


EMPTY = 2  # a client without samples
COUNTING = ccfl.Rule(
    memory=lambda params: jnp.zeros((), jnp.int32),
    shared=lambda memory: memory,
    finish=lambda visit, end: (
        jax.tree.map(lambda a: a / (1 + visit.memory), end.upload),
        visit.memory + 1,
    ),
)


@pytest.mark.parametrize("lanes", [1, 3])
def test_who_comes_twice_or_not_is_rejected_or_has_no_samples(lanes):
    """Twice in a round counts once, as both read the same; all others change no memory."""
    world, schedule = data(), RING
    lists = [
        [] if i == EMPTY else world.indices[slice(*world.offsets[i : i + 2])] for i in range(N)
    ]
    with warnings.catch_warnings(action="ignore"):  # it says so of nan
        world = ccfl.FederatedData.from_indices(world.arrays, lists)
    never = schedule.client == 5
    schedule = schedule.replace(present=schedule.present & ~never)
    simulation = simulated(COUNTING, lanes=lanes)
    state, info = ccfl.run_rounds(simulation.round, started(simulation), schedule, world)
    plan = schedule.remembered()
    planned = started(simulation, plan.memory_rows())
    planned, same = ccfl.run_rounds(simulation.round, planned, plan, world)
    expected = counts(schedule, np.diff(world.offsets))
    np.testing.assert_array_equal(state.clients, expected)
    assert expected[[EMPTY, 5, BROKEN]].tolist() == [0, 0, 0] and expected.max() > 5
    assert state.shared == planned.shared == expected.sum()
    assert info.rejected.sum() > 0 and not info.present[schedule.client == EMPTY].any()
    assert_trees_equal(same, info)
    assert_trees_equal(planned.params, state.params)


def test_trials_that_do_not_fit_are_refused():
    def round_at(rate, *state_slots_data):
        return simulated(systems.scaffold(rate), rate).round(*state_slots_data)

    def of(schedules, memories):
        keys, init = jax.vmap(jax.random.key)(jnp.arange(2)), simulated(systems.scaffold(RATE)).init
        states = jax.vmap(lambda key: init(key, DELAY + 1, N, memories))(keys)
        return Partial(round_at, RATES[:2]), states, schedules, data()

    message = (
        "state.clients: expected 9 rows, one for each client, found 8 (a schedule remembered() "
        "has others)"
    )
    refused(message, ccfl.run_trials, *of(RING, 8))
    refused(message, ccfl.run_trials, *of([RING, RING], 8))
    message = "schedule: expected a plan for all trials or none, found 1 of 2"
    refused(message, ccfl.run_trials, *of([RING, SCHEDULES[1]], N))
    needed = SCHEDULES[1].memory_rows()
    message = f"state.clients: expected {needed} rows, as in the schedule's plan, found 2"
    refused(message, ccfl.run_trials, *of(SCHEDULES[1], 2))
    message = "schedule: expected recall and store, or neither, found store alone"
    half = SCHEDULES[0].replace(recall=None)
    refused(message, ccfl.run_trials, *of(half, N))
    scaffold = simulated(systems.scaffold(RATE))
    refused(message, ccfl.run_rounds, scaffold.round, started(scaffold), half, data())


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@pytest.mark.parametrize("name", RULES)
def test_memories_keep_the_dtype_of_the_model_and_sums_are_wide(name, dtype):
    """The sum over clients is that of what they remember, to the rounding of 32 bits or more."""
    with jax.enable_x64(dtype == "float64"):
        init = lambda key: {"x": jnp.arange(1, D + 1).astype(dtype)}  # noqa: E731
        simulation = ccfl.simulation(
            task()._replace(init=init), SERVER, RATE, 1, "steps", "none", rule=RULES[name](RATE)
        )
        first = simulation.init(jax.random.key(0), DELAY + 1, N)
        state, _ = ccfl.run_rounds(simulation.round, first, RING, data())
        for before, after in zip(jax.tree.leaves(first), jax.tree.leaves(state), strict=True):
            assert before.dtype == after.dtype
        own, wide = jnp.dtype(dtype), jnp.promote_types(dtype, jnp.float32)
        kinds = {"scaffold": {own}, "feddyn": {own}, "mifa": {wide}, "feedback": {own, wide}}
        assert {leaf.dtype for leaf in jax.tree.leaves(state.clients)} == kinds[name]
        remembered = jax.vmap(RULES[name](RATE).shared)(state.clients)
        for a, total in zip(*map(jax.tree.leaves, (remembered, state.shared)), strict=True):
            assert total.dtype == wide and np.any(np.asarray(total))
            expected = np.asarray(a, np.float64).sum(axis=0)
            np.testing.assert_allclose(total, expected, atol=1e-5 if wide == jnp.float32 else 1e-12)
