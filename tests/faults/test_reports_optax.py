"""Faults people met in other tools: optax's transformations as server and as local optimiser."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from problems import (
    assert_trees_close,
    assert_trees_equal,
    federated,
    make_schedule,
    points_task,
    softmax_task,
    values_of,
)
from refusal import refused

import ccfl_jax as ccfl

pytestmark = [
    pytest.mark.usefixtures("quickly_compiled"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Specifying a key"),
]
TASK, SGD = softmax_task(), optax.sgd(0.1)
DATA, ARRAYS, _ = federated([5, 7, 4])
SCHEDULE = ccfl.random_schedule(0, 2, 3, 2, max_delay=1)


@pytest.fixture(autouse=True)
def ranks_promoted():
    """As in a user's process: some aliases multiply arrays of unequal rank."""
    with jax.numpy_rank_promotion("allow"):
        yield


def matrices(params):
    return jax.tree.map(lambda p: p.ndim > 1, params)


def halves(params):
    return jax.tree.map(lambda p: "a" if p.ndim > 1 else "b", params)


# The arguments of what takes more than a rate and defaults.
PARTS = {"a": SGD, "b": optax.adam(0.1)}
ARGUMENTS = {
    "add_noise": (0.1, 0.5, 0), "apply_if_finite": (SGD, 3), "chain": (SGD,),
    "conditionally_mask": (SGD, lambda step: step > 0), "flatten": (SGD,), "freeze": (matrices,),
    "conditionally_transform": (SGD, lambda step: step > 0), "lookahead": (SGD, 2, 0.5),
    "masked": (SGD, matrices), "measure_with_ema": (optax.tree.norm, 0.9),
    "monitor": ({"norm": optax.tree.norm},), "multi_transform": (PARTS, halves),
    "named_chain": (("a", SGD),), "partition": (PARTS, halves),
    "scale_by_backtracking_linesearch": (5,), "scale_by_zoom_linesearch": (5,),
    "scale_by_schedule": (lambda count: 0.1,), "snapshot": ("norm", optax.tree.norm),
    "stateless": (lambda updates, params: updates,),
    "stateless_with_tree_map": (lambda update, param: update,), "with_extra_args_support": (SGD,),
    "contrib.differentially_private_aggregate": (1.0, 0.1, 0), "contrib.mechanize": (SGD,),
    "contrib.dpsgd": (0.1, 1.0, 0.1, 0), "contrib.sam": (SGD, SGD),
    "contrib.schedule_free": (SGD, 0.1), "contrib.split_real_and_imaginary": (SGD,),
}  # fmt: skip
MADE = {
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.sgd)(0.1),
    "inject_stateful_hyperparams": lambda: optax.inject_stateful_hyperparams(optax.sgd)(0.1),
    "selective_transform": lambda: optax.selective_transform(
        SGD, freeze_mask={"w": True, "b": False}
    ),
    "MultiSteps": lambda: optax.MultiSteps(SGD, 2),
}
# What a round does not have: the loss as a function, which only a client's step has; gradients of
# single rows; two kinds of parameters; a second gradient; or what gives something else.
NOT_AS_SERVER = {"lbfgs", "scale_by_backtracking_linesearch", "scale_by_zoom_linesearch"}
NOWHERE = {
    "lookahead", "measure_with_ema", "monitor", "contrib.differentially_private_aggregate",
    "contrib.dpsgd", "contrib.hutchinson_estimator_diag_hessian", "contrib.sam",
    "contrib.scale_by_muon", "contrib.sophia",
}  # fmt: skip
# What moves nothing.
STILL = {"set_to_zero"}
# What turns a state in bfloat16 into one in float32, which a loop of steps cannot have.
WIDENS = {"scale_by_distance_over_gradients"}
# Functions without an annotation of what they give that make no transformation.
OTHERS = {
    "bias_correction", "matrix_inverse_pth_root", "sigmoid_binary_cross_entropy",
    "update_infinity_moment", "update_moment", "update_moment_per_elem_norm",
    "contrib.schedule_free_eval_params",
}  # fmt: skip


def aliases():
    """The names of all functions of optax and optax.contrib that make a transformation."""
    for module in (optax, optax.contrib):
        for name, value in inspect.getmembers(module, inspect.isfunction):
            gives = inspect.signature(value).return_annotation
            unknown = gives is inspect.Signature.empty
            full = f"{module.__name__}.{name}".removeprefix("optax.")
            makes = (unknown and full not in OTHERS) or "GradientTransformation" in str(gives)
            if makes and not name.startswith("_"):
                yield full
    yield "MultiSteps"


NAMES = sorted(aliases())


def made(name):
    if name in MADE:
        return MADE[name]()
    function = optax
    for part in name.split("."):
        function = getattr(function, part)
    if name in ARGUMENTS:
        return function(*ARGUMENTS[name])
    needed = inspect.signature(function).parameters.values()
    rates = {one.name: 0.1 for one in needed if one.default is one.empty}
    return function(**{name: 0.1 for name in rates})


def no_metrics(dtype=jnp.float32):
    return softmax_task(dtype)._replace(metrics=lambda *batch: {})


def simulations(name, task):
    """Of the alias as server and as local optimiser, or as the only one of them that it can be."""
    server = ccfl.cc_fedsgd(0.1) if name in NOT_AS_SERVER else made(name)
    return ccfl.simulation(task, server, made(name), batch_size=4, lanes=1)


def kept(state):
    """Structure, shapes and dtypes."""
    return jax.tree.map(lambda a: (a.shape, a.dtype), state)


@pytest.mark.parametrize("name", NAMES)
def test_nf_27_every_alias_of_optax_runs_or_is_refused_by_name(name):
    """An alias that a later optax brings has to find a place in the tables above."""
    task, refusals = no_metrics(), NOWHERE | NOT_AS_SERVER
    if name in refusals:
        server = "server: expected ..., found ..."
        refused(server, ccfl.build_round, task, made(name), 0.1)
    if name in NOWHERE:
        refused("local: expected ..., found ...", ccfl.build_round, task, SGD, made(name))
        return
    simulation = simulations(name, task)
    state = jax.eval_shape(lambda: simulation.init(jax.random.key(0), 2))
    row = jax.tree.map(lambda a: a[0], SCHEDULE)
    end, _ = jax.eval_shape(simulation.round, state, row, DATA)
    assert kept(end) == kept(state)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, jnp.float32) for name in sorted({*NAMES} - NOWHERE)]
    + [(name, jnp.bfloat16) for name in ("adam", "rmsprop", "sgd", *sorted(WIDENS))],
)
def test_nf_27_every_alias_of_optax_steps(name, dtype):
    """Two rounds: finite numbers, and a model that has moved unless the alias moves none."""
    task = no_metrics(dtype)
    if dtype == jnp.bfloat16 and name in WIDENS:
        message = "local: expected a state that keeps its shapes and dtypes, found others ..."
        refused(message, ccfl.build_round, task, SGD, made(name))
        return
    simulation = simulations(name, task)
    state = simulation.init(jax.random.key(0), 2)
    end, info = ccfl.run_rounds(simulation.round, state, SCHEDULE, DATA)
    assert info.finite.all() and (info.participants == 2).all()
    moved = jax.tree.map(lambda a, b: (a != b).any(), state.params, end.params)
    assert any(jax.tree.leaves(moved)) == (name not in STILL)


@pytest.mark.parametrize("name", sorted({*NAMES} - {"MultiSteps"}))
def test_nf_07_an_alias_that_is_not_called_is_refused(name):
    alias = optax
    for part in name.split("."):
        alias = getattr(alias, part)
    refused("local: expected ..., found ...", ccfl.build_round, TASK, SGD, alias)
    refused("server: expected ..., found ...", ccfl.build_round, TASK, alias)
    refused("server: expected ..., found ...", ccfl.init_state, TASK, alias, jax.random.key(0))


def rounds_of(server, local=0.1, rounds=4, task=None, data=DATA):
    """Four rounds with all three clients, and nobody in the second; states and infos."""
    simulation = ccfl.simulation(task or TASK, server, local, batch_size=4)
    state = simulation.init(jax.random.key(0))
    there = [[True] * 3] + [[False] * 3] + [[True] * 3] * (rounds - 2)
    schedule = make_schedule([range(3)] * rounds, present=there[:rounds])
    end, info = ccfl.run_rounds(simulation.round, state, schedule, data)
    return state, end, info


def test_nf_27_a_server_gets_the_rounds_training_loss():
    """reduce_on_plateau, by hand with the losses of the infos; a round of nobody is none."""
    plateau = optax.contrib.reduce_on_plateau(factor=0.5, patience=1, rtol=0.05)
    start, end, info = rounds_of(optax.chain(optax.sgd(0.001), plateau), rounds=6)
    expected = plateau.init(start.params)
    for loss in info.train_loss[info.participants > 0]:
        _, expected = plateau.update(start.params, expected, value=loss)
    assert len(info.train_loss) == 6 and np.isnan(info.train_loss[1])
    assert expected.scale < 1  # the losses fall by less than 5 %
    found = end.server[1]
    assert float(found.scale) == float(expected.scale)
    assert float(found.best_value) == pytest.approx(float(expected.best_value), rel=1e-6)


def test_nf_27_polyaks_step_is_the_loss_over_the_squared_pseudo_gradient():
    """x_1 = x_0 - (loss / |Delta|^2) Delta, Delta = x_0 - x_1 of plain descent at rate 1."""
    start, plain, info = rounds_of(optax.sgd(1.0), rounds=1)
    _, found, _ = rounds_of(optax.polyak_sgd(max_learning_rate=1e9), rounds=1)
    delta = jax.tree.map(lambda a, b: a - b, start.params, plain.params)
    rate = info.train_loss[0] / sum((d**2).sum() for d in jax.tree.leaves(delta))
    expected = jax.tree.map(lambda a, d: a - rate * d, start.params, delta)
    assert rate > 1
    assert_trees_close(found.params, expected, 1e-4)


def test_nf_27_a_line_search_gets_the_loss_of_the_clients_batch():
    """f = mean (x - v)^2 / 2 from x_0, steps -8 s f': f falls from s = 0.8^7 on, as
    (1 - 8 s)^2 <= 1 - 8 s / 5000 says; of three values and a row that pads them."""
    values = [1.0, 2.0, 6.0]
    search = optax.chain(optax.sgd(8.0), optax.scale_by_backtracking_linesearch(20))
    task, data = points_task(), values_of(values, values, values)
    start, end, _ = rounds_of(ccfl.cc_fedavg(), search, 1, task, data)
    s = next(0.8**k for k in range(20) if (1 - 8 * 0.8**k) ** 2 <= 1 - 8 * 0.8**k / 5000)
    assert s == 0.8**7
    assert float(end.params["x"]) == pytest.approx(3 + (1 - 8 * s) * (float(start.params["x"]) - 3))


@pytest.mark.parametrize("lanes", [1, 3])
def test_nf_27_noise_of_an_optimiser_is_a_visits_own(lanes):
    """Three clients with one sample, the same one: noise alone tells their ends apart."""
    local = optax.chain(optax.add_noise(1.0, 0.5, 0), optax.sgd(0.1))
    task, data = points_task(), values_of([1.0], [1.0], [1.0])
    simulation, ends = ccfl.simulation(task, ccfl.cc_fedavg(), local, 1, lanes=lanes), {}
    state = simulation.init(jax.random.key(0))
    for client in ([0], [1], [2], [0, 1, 2]):
        end, _ = ccfl.run_rounds(simulation.round, state, make_schedule([client]), data)
        ends[len(client), client[0]] = float(end.params["x"])
    alone = [ends[1, client] for client in range(3)]
    assert min(abs(alone[a] - alone[b]) for a, b in ((0, 1), (0, 2), (1, 2))) > 1e-3
    assert ends[3, 0] == pytest.approx(np.mean(alone), abs=1e-6)


def test_nf_32_masked_leaves_out_and_does_not_freeze():
    """As in optax: what is left out gets its "gradient" added, x_0 + Delta; zeros freeze."""
    start, plain, _ = rounds_of(optax.sgd(1.0), rounds=1)
    _, masked, _ = rounds_of(optax.masked(optax.sgd(1.0), matrices), rounds=1)
    frozen = optax.multi_transform({"a": optax.sgd(1.0), "b": optax.set_to_zero()}, halves)
    _, still, _ = rounds_of(frozen, rounds=1)
    for end in (masked, still):
        assert_trees_close(end.params["w"], plain.params["w"])
    assert_trees_close(masked.params["b"], 2 * start.params["b"] - plain.params["b"])
    assert abs(plain.params["b"] - start.params["b"]).max() > 1e-3
    assert_trees_equal(still.params["b"], start.params["b"])
