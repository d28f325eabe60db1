"""Quadratic clients, and the rounds of a federated method over them in plain NumPy."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np

import ccfl_jax as ccfl

N, D, ROUNDS, RATE = 9, 3, 50, 0.1
_RNG = np.random.default_rng(3)
A, B = _RNG.uniform(0.3, 1.5, (N, D)), _RNG.normal(size=(N, D))
SIZES = np.array([1, 4, 2, 7, 3, 5, 2, 6, 1])
BROKEN = 7  # its gradients are nan, so what it sends is rejected
X0 = np.arange(1.0, D + 1)
DELAY = 3


@functools.cache
def task():
    """f_i(x) = sum a_i (x - b_i)^2 / 2, the same in every row of client i."""

    def loss(params, batch, mask, key):
        return (batch["a"] * (params["x"][None] - batch["b"]) ** 2).sum() / 2

    def init(key):
        return {"x": jnp.arange(1, D + 1).astype(jnp.zeros(()).dtype)}

    return ccfl.Task(init, loss, lambda params, batch, mask: {})


def data(broken=True):
    lists = np.split(np.arange(SIZES.sum()), np.cumsum(SIZES)[:-1])
    b = np.repeat(B, SIZES, axis=0)
    if broken:
        b[lists[BROKEN]] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says so of nan
        return ccfl.FederatedData.from_indices({"a": np.repeat(A, SIZES, axis=0), "b": b}, lists)


def busy(rounds=ROUNDS, slots=4, seed=1):
    """Stale starts, uneven work in steps, absent slots, a round of nobody, a client twice."""
    schedule = ccfl.random_schedule(seed, rounds, N, slots, max_delay=DELAY, local_work=2)
    rng = np.random.default_rng(0)
    present = rng.random((rounds, slots)) < 0.8
    client, work = schedule.client.copy(), rng.integers(1, 4, (rounds, slots)).astype(np.int32)
    present[5] = False
    for t in range(3, rounds, 5):  # with other work
        client[t, 1] = client[t, 3]
        present[t, 1:4:2] = True
        work[t, 1:4:2] = 1, 3
    work[9, 0], present[9, 0] = 0, True
    parts = {"client": client, "work": work, "present": present, "work_unit": "steps"}
    return schedule.replace(**parts)


def everybody(rounds, work):
    """All clients in every round, none stale; `work` steps, one number or one for each."""
    shape = rounds, N
    client = np.broadcast_to(np.arange(N, dtype=np.int32), shape).copy()
    work = np.broadcast_to(np.asarray(work, np.int32), shape).copy()
    none = np.zeros(shape, np.int32)
    return ccfl.Schedule(client, none, work, np.ones(shape, bool), work_unit="steps")


def run(schedule, server, local=RATE, rule=None, aggregate=None, broken=True, **how):
    """A run of the schedule: (state, infos); `how`: pieces, lanes, mesh, normalise."""
    pieces, mesh = how.pop("pieces", [(0, schedule.num_rounds)]), how.pop("mesh", None)
    world = data(broken)
    simulation = ccfl.simulation(
        task(), server, local, 1, "steps", how.pop("normalise", "none"), aggregate,
        how.pop("lanes", 2), mesh, rule,
    )  # fmt: skip
    memories = schedule.memory_rows() if schedule.recall is not None else None
    state = simulation.init(jax.random.key(0), DELAY + 1, N, memories)
    if mesh:
        place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        world, state = jax.device_put((world, state), place)
    for start, stop in pieces:
        state, info = ccfl.run_rounds(simulation.round, state, schedule.rounds(start, stop), world)
    return state, info


def grad(i, x):
    return A[i] * (x - B[i])


def descend(x, steps, gradient, rate=RATE):
    for _ in range(steps):
        x = x - rate * gradient(x)
    return x


def delta(xs, t, i, s, k):
    """Algorithm 3's undivided upload of client i in round t."""
    return xs[t - s] - descend(xs[t - s], k, lambda y: grad(i, y))


def plain(t, xs, i, s, k, last):
    """A visit of `twin`: that upload."""
    return delta(xs, t, i, s, k)


def mean(t, x, uploads, who):
    """A server step of `twin`: x_t less the mean upload."""
    return x - np.mean(uploads, axis=0)


def visits(schedule, t, broken=True):
    """(client, staleness, steps, whether its memory is kept) of each upload counted in round t."""
    here = [
        (int(schedule.client[t, k]), int(schedule.staleness[t, k]), int(schedule.work[t, k]))
        for k in range(schedule.num_slots)
        if schedule.present[t, k] and schedule.work[t, k]
        and not (broken and schedule.client[t, k] == BROKEN)
    ]  # fmt: skip
    for place, (i, s, k) in enumerate(here):
        yield i, s, k, i not in [other for other, *_ in here[place + 1 :]]


def twin(schedule, visit, server_step, broken=True, idle=lambda: None, first=X0):
    """x_0 = `first`, x_1, ...; `visit(t, xs, i, s, k, last)` gives an upload, and
    `server_step(t, x, uploads, who)` x_{t+1}, `who` as `visits`; a round of nobody changes nothing,
    and calls `idle`."""
    xs = [first]
    for t in range(schedule.num_rounds):
        who = list(visits(schedule, t, broken))
        uploads = [visit(t, xs, *one) for one in who]
        xs.append(server_step(t, xs[-1], uploads, who) if who else xs[-1])
        if not who:
            idle()
    return xs


def assert_same_run(state, xs, tolerance=1e-9):
    """The last model and the history are those of the twin; and something happened."""
    np.testing.assert_allclose(state.params["x"], xs[-1], rtol=tolerance, atol=tolerance)
    assert np.abs(xs[-1] - X0).max() > 0.1
    for s in range(DELAY + 1):
        held = state.history.models["x"][(len(xs) - 1 - s) % (DELAY + 1)]
        np.testing.assert_allclose(held, xs[-1 - s], rtol=tolerance, atol=tolerance)


def both_precisions(schedule, xs, *args, **kwargs):
    """The run equals the twin to 1e-9 in float64, and to 1e-5 in float32."""
    with jax.enable_x64(True):
        assert_same_run(run(schedule, *args, **kwargs)[0], xs, 1e-9)
    assert_same_run(run(schedule, *args, **kwargs)[0], xs, 1e-5)
