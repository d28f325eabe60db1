"""A rule's place in the round: it costs nothing where it is left out, and runs are one run."""

import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import problems
import pytest
from quadratic_clients import RATE, ROUNDS, N, busy, data, run, task
from refusal import refused

import ccfl_jax as ccfl
from ccfl_jax import systems, terms
from ccfl_jax.engine import client_batching, rounds
from ccfl_jax.engine.run import loop, padded

pytestmark = pytest.mark.usefixtures("quickly_compiled")


def program(server, lanes):
    """The compiled text of eight rounds, without the places and numbers in names."""
    problem, schedule = problems.softmax_task(), ccfl.random_schedule(0, 8, 6, 4, max_delay=2)
    samples = ccfl.FederatedData.from_indices(
        {"x": np.ones((60, 6), np.float32), "y": np.arange(60) % 3},
        np.array_split(np.arange(60), 6),
    )
    simulation = ccfl.simulation(problem, server, 0.1, 5, lanes=lanes)
    state, (slots, count) = simulation.init(jax.random.key(0), 3), padded(schedule)

    def whole(*args):
        return loop(simulation.round, ((), {}), *args)

    args = state, slots, jnp.asarray(count, jnp.int32), samples
    text = jax.jit(whole).lower(*args).compile().as_text()
    text = re.sub(r",? *metadata=\{[^}]*\}", "", text)
    lines = [line for line in text.split("\n") if not re.match(r"\d|File|Func|Stack|HloM", line)]
    return re.sub(r"(?<=[a-z_])[.\d]+(?=\W|_)", "", "\n".join(lines))


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("server", [ccfl.cc_fedavg(), ccfl.cc_fedams(0.1)], ids=["avg", "ams"])
def test_without_a_rule_the_program_is_that_of_algorithm_3_alone(server, lanes, monkeypatch):
    """Every place of a rule in the round taken out, the compiled program is the same text."""
    plain = program(server, lanes)

    def upload_alone(state, slot, start, client, key):
        return SimpleNamespace(start=start, memory=())

    def step_alone(server, delta, state, arrivals, loss):
        start = rounds.tree_util.wide(state.params)
        update = optax.with_extra_args_support(server).update
        updates, following = update(delta, state.server, start, value=loss)
        return optax.apply_updates(state.params, updates), following

    def nothing(*args):
        raise AssertionError("a part of a rule")

    monkeypatch.setattr(rounds, "_visit", upload_alone)
    monkeypatch.setattr(rounds, "_server_step", step_alone)
    monkeypatch.setattr(rounds, "_visits", lambda rule, slots, read, work, steps, row: (
        client_batching.Slot(slots.client, read, work, rounds._which_visit(slots))
    ))  # fmt: skip
    monkeypatch.setattr(rounds.past, "message", nothing)
    monkeypatch.setattr(rounds.client_memory, "keep", lambda part, before, *rest: before)
    assert program(server, lanes) == plain
    assert plain.count("\n") > 1000


RULES = {
    "scaffold": lambda: (ccfl.cc_fedsgd(0.9), systems.scaffold(RATE)),
    "feddyn": lambda: (ccfl.cc_fedavg(), systems.feddyn(0.5)),
    "mifa": lambda: (ccfl.cc_fedavg(), systems.mifa(wait=False)),
    "kept": lambda: (ccfl.cc_fedavg(), terms.keeping(optax.sgd(0.05, 0.5))),
}


def equal(a, b, but=()):
    """Bit for bit, the two states but for some of their fields."""
    for name in set(a._fields) - {"key", *but}:
        one, other = getattr(a, name), getattr(b, name)
        assert jax.tree.structure(one) == jax.tree.structure(other), name
        jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("name", RULES)
def test_planned_memories_pieces_and_lanes_are_the_same_run(name):
    server, rule = RULES[name]()
    schedule = busy()
    whole, info = run(schedule, server, rule=rule)
    planned, same = run(schedule.remembered(), server, rule=rule)
    jax.tree.map(np.testing.assert_array_equal, info, same)
    equal(whole, planned, but=["clients"])
    pieces = [(0, 7), (7, 8), (8, ROUNDS)]
    cut, _ = run(schedule.planned().remembered(), server, rule=rule, pieces=pieces)
    equal(whole, cut, but=["clients", "history"])
    cut, _ = run(schedule, server, rule=rule, pieces=pieces)
    equal(whole, cut)


@pytest.mark.parametrize("name", ["scaffold", "kept"])
def test_devices_and_lanes_make_the_same_run(name):
    server, rule = RULES[name]()
    whole, _ = run(busy(), server, rule=rule)
    for how in ({"mesh": problems.mesh_of(4), "lanes": 1}, {"lanes": 4}, {"lanes": 1}):
        other, _ = run(busy(), server, rule=rule, **how)
        for field in ("params", "clients", "shared"):
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
                getattr(whole, field),
                getattr(other, field),
            )


def rejected_once():
    """SCAFFOLD whose first uploads of clients 1 and 2, and one more of 2, are not finite."""
    rule = systems.scaffold(RATE)

    def finish(visit, end):
        of_2 = (visit.client == 2) & (visit.round % 3 < 2)
        bad = ((visit.client == 1) & (visit.round == 0)) | of_2
        upload, variate = rule.finish(visit, end)
        return jax.tree.map(lambda a: jnp.where(bad, jnp.nan, a), upload), variate

    return rule._replace(finish=finish)


def test_a_client_that_is_rejected_keeps_what_it_remembered():
    """Its row of a plan may have been another client's: what it read is written there."""
    client = np.array([[0, 1], [0, 2], [3, 1], [3, 2], [1, 2], [1, 2]], np.int32)
    none = client * 0
    schedule = ccfl.Schedule(client, none, none + 2, client >= 0, work_unit="steps")
    rule, ends = rejected_once(), []
    for one in (schedule, schedule.remembered()):
        ends.append(run(one, ccfl.cc_fedsgd(0.9), rule=rule, lanes=1))
    assert ends[0][1].rejected.tolist() == [1, 1, 0, 1, 1, 0]
    jax.tree.map(np.testing.assert_array_equal, ends[0][1], ends[1][1])
    equal(ends[0][0], ends[1][0], but=["clients"])


def test_of_two_visits_in_a_round_the_last_counted_one_is_remembered():
    """Client 4 comes twice: with 1 step, then with 3 whose upload is rejected."""
    client, work = np.array([[4, 4]], np.int32), np.array([[1, 3]], np.int32)
    schedule = ccfl.Schedule(client, client * 0, work, client > 0, work_unit="steps")

    def finish(visit, end):
        bad = visit.steps == 3
        return jax.tree.map(lambda a: jnp.where(bad, jnp.nan, a), end.upload), visit.steps

    rule = ccfl.Rule(memory=lambda params: jnp.zeros((), jnp.int32), finish=finish)
    state, info = run(schedule, ccfl.cc_fedavg(), rule=rule, broken=False)
    assert info.rejected.tolist() == [1] and state.clients.tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0]
    state, _ = run(schedule, ccfl.cc_fedavg(), rule=rule._replace(
        finish=lambda visit, end: (end.upload, visit.steps)), broken=False)  # fmt: skip
    assert state.clients.tolist() == [0, 0, 0, 0, 3, 0, 0, 0, 0]


def test_a_state_of_another_rule_or_of_other_clients_is_refused():
    scaffold, schedule = systems.scaffold(RATE), busy()
    server = ccfl.cc_fedavg()
    with_rule = ccfl.simulation(task(), server, RATE, 1, "steps", rule=scaffold)
    without = ccfl.simulation(task(), server, RATE, 1, "steps")
    key = jax.random.key(0)
    message = (
        "state.clients: expected what the round's rule makes (`simulation` makes both), found "
        "tuple of another structure"
    )
    refused(message, ccfl.run_rounds, with_rule.round, without.init(key, 4), schedule, data())
    message = "num_clients: expected an integer >= 1 (the rule keeps memories), found None"
    refused(message, with_rule.init, key, 4)
    message = (
        "state.clients: expected 9 rows, one for each client, found 8 (a schedule remembered() "
        "has others)"
    )
    refused(message, ccfl.run_rounds, with_rule.round, with_rule.init(key, 4, 8), schedule, data())
    planned = schedule.remembered()
    rows = planned.memory_rows()
    message = f"state.clients: expected {rows} rows, as in the schedule's plan, found "
    for found in (2, rows + 1):
        state = with_rule.init(key, 4, N, found)
        refused(f"{message}{found}", ccfl.run_rounds, with_rule.round, state, planned, data())
    message = "memories: expected at most ... of 1.2e-05 MB (a device has ... GB), found ..."
    refused(message, with_rule.init, key, 4, 2**31, 2**40)
    refused("rule: expected a ccfl.Rule or None, found 3", ccfl.simulation, task(), server, rule=3)


@pytest.mark.parametrize(("finish", "found"), [
    (lambda visit, end: end.upload, "a pair, upload and memory, found dict"),
    (lambda visit, end: (end.upload, (), 0), "a pair, upload and memory, found 3 of them"),
    (lambda visit, end: (end.upload, end.upload), "a memory like that of rule.memory (..."),
    (lambda visit, end: (end.upload, jnp.zeros(3)), "...(PyTreeDef(*) of [()]), found ...[(3,)]"),
])  # fmt: skip
def test_a_finish_that_gives_something_else_is_refused(finish, found):
    """As that of a rule without a memory, which returns it all the same."""
    rule = ccfl.Rule(memory=lambda params: 0.0, finish=finish)
    made = ccfl.simulation(task(), ccfl.cc_fedavg(), RATE, rule=rule)
    state, schedule = made.init(jax.random.key(0), 1, N), ccfl.random_schedule(0, 1, N, max_delay=0)
    message = f"rule.finish: expected {found}"
    refused(message, ccfl.run_rounds, made.round, state, schedule, data())


def ran(rule, server=None):
    """A round of a rule, traced."""
    made = ccfl.simulation(task(), server or ccfl.cc_fedams(0.1), RATE, rule=rule)
    state, schedule = made.init(jax.random.key(0), 1, N), ccfl.random_schedule(0, 1, N, max_delay=0)
    return ccfl.run_rounds(made.round, state, schedule, data())


def against_the_mean(visit, optimiser):
    slope = jax.tree.map(jnp.subtract, visit.message, visit.memory)
    return ccfl.terms.before(ccfl.terms.linear(slope), optimiser=optimiser)


REMEMBERS = {"memory": lambda params: jax.tree.map(jnp.zeros_like, params)}
NO_MESSAGE = (
    "rule.local: expected a function of visit, optimiser (visit.message (), ...), found ..."
)


@pytest.mark.parametrize(("parts", "message"), [
    ({"message": lambda mean, state: mean, "local": against_the_mean}, NO_MESSAGE),
    ({"shared": lambda memory: memory, "local": against_the_mean}, NO_MESSAGE),
    ({"combine": lambda delta, mean, state: jax.tree.map(jnp.add, delta, mean)},
     "rule.combine: expected a function of delta, mean, state (mean ()), found ValueError: ..."),
    ({"message": lambda mean: mean}, "rule.message: expected a function of mean, state ..."),
    ({"memory": lambda: 0.0}, "rule.memory: expected a function of params, found TypeError: ..."),
    ({"begin": lambda visit: visit.begin}, "rule.begin: ... of visit (...), found Attr..."),
    ({"finish": lambda end: end}, "rule.finish: ... of visit, end (...), found TypeError: ..."),
    ({"local": lambda visit, optimiser: None},
     "rule.local: expected an optax optimiser or a number, found None"),
])  # fmt: skip
def test_an_error_within_a_rule_is_one_line_that_names_its_function(parts, message):
    refused(message, ran, ccfl.Rule(**REMEMBERS | parts))


def test_a_line_of_our_own_within_a_rule_is_kept():
    def finish(visit, end):
        raise ValueError("rule: expected plain uploads, found others")

    refused("rule: expected plain uploads, found others", ran, ccfl.Rule(finish=finish))


def first(tree):
    """The path and shape of the first leaf."""
    (path, leaf), *_ = jax.tree_util.tree_leaves_with_path(tree)
    return jax.tree_util.keystr(path, simple=True, separator="."), leaf.shape


@pytest.mark.parametrize("server", [ccfl.cc_fedavg(), ccfl.cc_fedams(0.1)])
@pytest.mark.parametrize(("change", "found"), [
    (lambda upload: (), "nothing"),
    (jax.tree.leaves, "nothing"),
    (lambda upload: jax.tree.map(jnp.mean, upload), "()"),  # which would be broadcast
    (lambda upload: jax.tree.map(lambda a: jnp.ones((3, *a.shape)), upload), "(3, ...)"),
])  # fmt: skip
@pytest.mark.parametrize("where", ["finish", "combine"])
def test_uploads_unlike_the_parameters_are_refused(change, found, server, where):
    parts = {
        "finish": lambda visit, end: (change(end.upload), visit.memory),
        "combine": lambda delta, mean, state: change(delta),
    }
    path, shape = first(jax.eval_shape(task().init, jax.random.key(0)))
    message = f"pseudo_gradient: expected {shape} at {path}, as in the parameters, found {found} ("
    refused(f"{message}...", ran, ccfl.Rule(**{where: parts[where]}), server)


def test_a_server_may_take_another_tree_than_the_parameters():
    def update(updates, state, params=None):
        return updates[0] if isinstance(updates, tuple) else updates, state

    server = optax.chain(optax.GradientTransformation(lambda params: (), update), optax.sgd(1.0))
    paired = ccfl.Rule(finish=lambda visit, end: ((end.upload, 1.0), visit.memory))
    state, plain = ran(paired, server)[0], ran(None, server)[0]
    jax.tree.map(np.testing.assert_array_equal, state.params, plain.params)
