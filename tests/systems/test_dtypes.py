"""Every system with a model of bfloat16: it runs, donated, and its state keeps its dtypes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from quadratic_clients import DELAY, RATE, D, N, busy, data, task

import ccfl_jax as ccfl
from ccfl_jax import systems, terms

SHORT = task()._replace(init=lambda key: {"x": jnp.arange(1, D + 1, dtype=jnp.bfloat16)})
PARTS = SHORT._replace(  # of two layers
    init=lambda key: {
        "x": jnp.arange(1, D + 1, dtype=jnp.bfloat16),
        "y": jnp.bfloat16(1) * jnp.ones(2, jnp.bfloat16),
    },
    loss=lambda params, *batch: (
        task().loss({"x": params["x"]}, *batch) + (params["y"] ** 2).sum().astype(float)
    ),
)
# No methods: what they are worth, a compressor's kind, what finds a clip, draws or makes data, and
# what is asked of a model or a rule.
OTHERS = {"Compressor", "adaptive_clip", "bytes_of", "epsilon_of_sampling", "epsilon_of_schedule"}
OTHERS |= {"chosen", "label_flip", "model_layers", "own_model"}
SOME = np.arange(N) == 0  # attackers


def of(rule=None, aggregate=None, server=None, noise=None, local=RATE, problem=SHORT):
    server = ccfl.cc_fedavg() if server is None else server
    server = server if noise is None else optax.chain(noise, server)
    return ccfl.simulation(
        problem, server, local, 1, "steps", "none", aggregate, lanes=2, rule=rule
    )


def private(rule, aggregate, noise):
    return of(rule, aggregate, noise=noise)


def sending(transform):
    return of(terms.sending(transform))


METHODS = {
    "afa_cd": lambda: of(systems.afa_cd()),
    "afa_cs": lambda: of(systems.afa_cs()),
    "alie": lambda: of(aggregate=systems.alie(SOME, ccfl.mean(), 1.5)),
    "bulyan": lambda: of(aggregate=systems.bulyan(0)),
    "ca2fl": lambda: of(systems.ca2fl()),
    "centred_clipping": lambda: of(aggregate=systems.centred_clipping(1.0)),
    "ditto": lambda: (lambda two, rule: of(rule, problem=two))(*systems.ditto(SHORT)),
    "dp_fedavg": lambda: private(*systems.dp_fedavg(0.5, 1.0, 4)),
    "dp_fedavg_adaptive": lambda: private(*systems.dp_fedavg_adaptive(1.0, 4)),
    "dp_ftrl": lambda: private(*systems.dp_ftrl(0.5, 1.0, 4, 3)),
    "fadas": lambda: of(server=systems.fadas(0.1)),
    "fedadagrad": lambda: of(server=systems.fedadagrad(0.1)),
    "fedadam": lambda: of(server=systems.fedadam(0.1)),
    "fedams": lambda: of(server=systems.fedams(0.1)),
    "fedasync": lambda: of(systems.fedasync()),
    "fedavg": lambda: of(systems.fedavg()),
    "fedavgm": lambda: of(server=systems.fedavgm(0.1)),
    "fedbuff": lambda: of(systems.fedbuff()),
    "feddyn": lambda: of(systems.feddyn(0.5)),
    "fedexp": lambda: of(*systems.fedexp()),
    "fedlaavg": lambda: of(systems.fedlaavg()),
    "fedlesam": lambda: of(systems.fedlesam()),
    "fednova": lambda: of(*systems.fednova()),
    "fedpa": lambda: of(systems.fedpa(0, 1, 2)),
    "fedpd": lambda: of(systems.fedpd(0.5, 0.5)),
    "fedper": lambda: of(systems.fedper(PARTS), problem=PARTS),
    "fedprox": lambda: of(systems.fedprox(0.5)),
    "fedyogi": lambda: of(server=systems.fedyogi(0.1)),
    "fine_tuning": lambda: of(systems.fine_tuning()),
    "gaussian": lambda: sending(systems.gaussian(SOME, 0.1)),
    "gaussian_noise": lambda: sending(systems.gaussian_noise(0.1)),
    "geometric_median": lambda: of(aggregate=systems.geometric_median()),
    "ipm": lambda: of(aggregate=systems.ipm(SOME, systems.median(), 0.5)),
    "krum": lambda: of(aggregate=systems.krum(0)),
    "lg_fedavg": lambda: of(systems.lg_fedavg(PARTS), problem=PARTS),
    "median": lambda: of(aggregate=systems.median()),
    "mifa": lambda: of(systems.mifa(wait=False)),
    "mimelite": lambda: of(*systems.mimelite()),
    "norm_bound": lambda: of(aggregate=systems.norm_bound(1.0)),
    "personal": lambda: of(systems.personal(lambda path: True)),
    "qfedavg": lambda: of(*systems.qfedavg(1.0, RATE)),
    "quantise": lambda: sending(systems.quantise(4)),
    "random_k": lambda: sending(systems.random_k(0.34)),
    "sam": lambda: of(local=optax.chain(systems.sam(), optax.sgd(RATE))),
    "scaffold": lambda: of(systems.scaffold(RATE)),
    "sign": lambda: sending(systems.sign()),
    "sign_flip": lambda: sending(systems.sign_flip(SOME, 0.5)),
    "slower_when_stale": lambda: of(noise=systems.slower_when_stale(0.1)),
    "slowmo": lambda: of(server=systems.slowmo(1.0, RATE)),
    "top_k": lambda: sending(systems.top_k(0.34)),
    "tree_noise": lambda: of(noise=systems.tree_noise(0.1, 3)),
    "trimmed_mean": lambda: of(aggregate=systems.trimmed_mean(0.2)),
    "with_error_feedback": lambda: sending(systems.with_error_feedback(systems.top_k(0.34))),
}
NO_STEP = {"personal", "fine_tuning", "lg_fedavg"}  # the first leaf is the clients' own


def test_no_system_is_left_out():
    assert METHODS.keys() | OTHERS == {*systems.__all__}


@pytest.mark.parametrize("name", METHODS)
def test_dtypes_of_a_bfloat16_model_last(name):
    simulation = METHODS[name]()
    state = simulation.init(jax.random.key(0), DELAY + 1, N)
    before = jax.tree.map(lambda a: a.dtype, state)
    first = [np.asarray(leaf, float) for leaf in jax.tree.leaves(state.params)]
    for t in range(3):
        piece = busy().rounds(t, t + 1)
        state, info = ccfl.run_rounds(
            simulation.round, state, piece, data(broken=False), donate=True
        )
        assert info.rejected.sum() == 0 and info.participants.sum() > 0
        assert jax.tree.map(lambda a: a.dtype, state) == before
    leaves = jax.tree.leaves(state._replace(key=0))
    assert all(np.isfinite(np.asarray(leaf, float)).all() for leaf in leaves)
    models = jax.tree.leaves(state.params)
    assert {leaf.dtype for leaf in models} == {jnp.dtype(jnp.bfloat16)}
    assert np.all(np.asarray(models[0], float) != first[0]) == (name not in NO_STEP)
