"""Faults people met in other simulators: the right value of those that no module's test holds.

The tests' `README.md` lists every case by its id. Here: rounds, of one compiled program; sums and
numerics, data, and whole runs are in `test_field_cases_numbers.py`, `_data.py` and `_runs.py`.
"""

import os
from pathlib import Path

import jax
import numpy as np
import one_number
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from one_number import rounds, rows, run
from problems import counting, mesh_of, softmax_task
from refusal import refused

import ccfl_jax as ccfl

pytestmark = pytest.mark.usefixtures("quickly_compiled")
STATM = Path("/proc/self/statm")
AT_X = {"abc": rows(b=1.0)}  # the value there is x


def test_pt_07_a_number_is_the_same_client_in_data_and_schedule():
    """Client i holds the value i, which its round takes off x = 1."""
    clients = [rows(b=float(client)) for client in range(10)]
    data = one_number.data_of(*clients)
    for client in range(10):
        assert data.client(client)["abc"].tolist() == [[0, client, 0]]
        end, _ = run(clients, rounds([[client]]))
        assert 1 - end == client
    refused("schedule: expected clients 0 to 10, found 11", run, clients, rounds([[11]]))
    refused("client: expected 0 to 2147483647, found -1 to 0", run, clients, rounds([[-1]]))
    for client in (-1, 11):
        message = f"client: expected an integer from 0 to 10, found {client}"
        refused(message, data.client, client, kind=IndexError)


def test_lt_06_a_lane_that_blows_up_leaves_the_others_alone():
    """Steps 0.1 x and 0.2 x at x = 1, once each; client 2 takes 50 steps of 1e6 x beside them."""
    clients = [rows(a=0.1), rows(a=0.2), rows(a=1e6)]
    end, info = run(clients, rounds([[0, 1, 2]], work=[[1, 1, 50]]))
    assert end == pytest.approx((0.9 + 0.8) / 2, rel=1e-6)
    assert (info.rejected[0], info.participants[0], np.isfinite(info.train_loss[0])) == (1, 2, True)


@pytest.mark.parametrize(
    ("optimiser", "lanes"),
    [(optax.sgd, 2), pytest.param(lambda rate: rate, 1, marks=pytest.mark.slow)],
)
def test_lt_08_a_local_schedule_follows_the_round(optimiser, lanes):
    """Rate 0.1 / 2^t, gradient 1, K = 1, there in rounds 0 and 2: 0.1 and 0.025, not 0.05."""
    schedule = rounds([[0, 1]] * 3, present=[[True, False], [False, False], [True, False]])
    local = lambda t: optimiser(optax.exponential_decay(0.1, 1, 0.5)(t))  # noqa: E731
    round_fn = ccfl.build_round(one_number.TASK, one_number.SERVER, local, lanes=lanes)
    counted, traces = counting(round_fn)
    data, state = one_number.data_of(rows(b=1.0)), one_number.start()
    places, compiled = [1.0], []
    for t in range(3):
        state, _ = ccfl.run_rounds(counted, state, schedule.rounds(t, t + 1), data)
        places.append(float(state.params["x"]))
        compiled.append(len(traces))
    np.testing.assert_allclose(-np.diff(places), [0.1, 0, 0.025], rtol=1e-5)
    assert compiled == [compiled[0]] * 3


def test_lt_09_uploads_weigh_neither_by_batches_nor_by_samples():
    """64 samples of 1 and 65 of 0 in batches of 32: 1/2. By samples 64/129, by batches 2/5."""
    end, info = run([rows(64, b=1.0), rows(65)], rounds([[0, 1]]))
    assert 1 - end == pytest.approx(1 / 2, rel=1e-6)
    np.testing.assert_array_equal(info.steps[:, :2], [[2, 3]])


def test_lt_09_a_clients_loss_weighs_its_samples():
    """Batches of 32, 32 and 1 at a model that stands still: the mean over the 65 samples."""
    values = np.random.default_rng(0).normal(5, 3, 65)
    _, info = run([rows(65, c=values)], rounds([[0]]))
    assert info.train_loss[0] == pytest.approx(values.mean(), rel=1e-5)


def test_lt_13_an_epoch_is_all_of_its_batches():
    """Three batches of 32 and one of 4, twice."""
    _, info = run([rows(100)], rounds([[0]], work=2))
    assert (info.steps[0, 0], info.samples[0, 0]) == (8, 200)


def test_as_07_staleness_is_no_weight():
    """Five uploads of 1, of staleness 0 to 4: 1. With (1 + s)^-1/2 over the count, 0.646334."""
    there, staleness = [[False] * 5] * 4 + [[True] * 5], [[0] * 5] * 4 + [[0, 1, 2, 3, 4]]
    end, _ = run([rows(b=1.0)] * 5, rounds([range(5)] * 5, staleness, present=there))
    assert 1 - end == pytest.approx(1.0, rel=1e-6)


def test_as_08_staleness_is_counted_from_the_download():
    """Steps 0.1 x: what downloads x_2 and arrives at x_5 takes 0.1 x_2 off, staleness 3."""
    schedule = rounds([[0]] * 6, staleness=[[0]] * 5 + [[3]])
    end, info = run([rows(a=0.1)], schedule)
    assert end == pytest.approx(0.9**5 - 0.1 * 0.9**2, rel=1e-6)
    assert info.staleness[5, 0] == 3


@pytest.mark.parametrize("lands", [True, False])
def test_as_10_an_upload_that_never_lands_is_dropped_and_not_counted(lands):
    """Client 1 downloads x_1 and is due in round 3, beside client 0, who is always there."""
    present, staleness = [[True, False]] * 3 + [[True, lands]], [[0, 0]] * 3 + [[0, 2]]
    end, info = run([rows(a=0.1)] * 2, rounds([[0, 1]] * 4, staleness, present=present))
    x_1, x_3 = 0.9, 0.9**3
    mean = (x_3 + x_1) / 2 if lands else x_3
    assert end == pytest.approx(x_3 - 0.1 * mean, rel=1e-6)
    np.testing.assert_array_equal(info.participants, [1, 1, 1, 1 + lands])
    np.testing.assert_array_equal(info.present[3, :2], [True, lands])
    assert info.rejected.sum() == 0


def test_mc_09_donated_buffers_are_not_read_again():
    """Steps 0.1 x, staleness up to 3, each round evaluated and its state given away."""
    data, state = one_number.data_of(rows(a=0.1)), one_number.start()
    staleness = [min(t, 3) for t in range(8)]
    schedule = rounds([[0]] * 8, staleness=[[s] for s in staleness])
    models = [1.0]
    for t, s in enumerate(staleness):
        piece = schedule.rounds(t, t + 1)
        state, _ = ccfl.run_rounds(one_number.ROUND, state, piece, data, donate=True)
        models.append(models[t] - 0.1 * models[t - s])
        found = ccfl.evaluate(one_number.TASK, state.params, AT_X)["value"]
        assert found == pytest.approx(models[-1], rel=1e-6)


def resident():
    """Bytes of memory that this process holds."""
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not STATM.exists(), reason="no /proc, so no resident memory")
def test_mc_07_memory_does_not_creep_up_round_by_round():
    """100 rounds run one by one, evaluated, their infos kept: under 0.1 MB a round after 20."""
    data, state = one_number.data_of(rows(a=0.1)), one_number.start()
    schedule, infos = rounds([[0]] * 100), []
    for t in range(100):
        piece = schedule.rounds(t, t + 1)
        state, info = ccfl.run_rounds(one_number.ROUND, state, piece, data, donate=True)
        infos.append((info, ccfl.evaluate(one_number.TASK, state.params, AT_X)))
        if t == 19:
            before = resident()
    assert resident() - before < 80 * 100_000
    for info, scores in infos:  # numbers of the host, and no view of more than these rounds
        assert all(type(a) is np.ndarray and a.flags.owndata for a in jax.tree.leaves(info))
        assert all(type(score) is float for score in scores.values())


def test_me_03_test_metrics_weigh_rows_and_train_metrics_uploads():
    """1 row that is right and 99 that are not: 0.01 for all rows; 1/2 over the two uploads."""
    right, wrong = rows(c=1.0), rows(99)
    _, info = run([right, wrong], rounds([[0, 1]]))
    assert info.train_metrics["value"][0] == 0.5
    arrays = {"abc": np.concatenate([right, wrong])}
    found = ccfl.evaluate(one_number.TASK, one_number.start().params, arrays, 7)
    assert found["value"] == 0.01


@pytest.fixture(scope="module")
def on_two():
    """A mesh of two devices and its program."""
    mesh = mesh_of(2)
    how = {"mesh": mesh, "lanes": 1}
    return mesh, ccfl.build_round(one_number.TASK, one_number.SERVER, 1.0, one_number.BATCH, **how)


def test_md_02_devices_share_a_mean_over_uploads(on_two):
    """[1, absent] and [3, 5] over two devices: 3; the mean of two devices' means is 2.5."""
    clients = [rows(b=1.0), rows(b=9.0), rows(b=3.0), rows(b=5.0)]
    schedule = rounds([range(4)], present=[[True, False, True, True]])
    mesh, round_fn = on_two
    end, info = run(clients, schedule, round_fn, mesh=mesh)
    assert 1 - end == pytest.approx(3.0, rel=1e-6)
    assert info.participants[0] == 3


def test_md_04_initial_model_and_batch_order_do_not_hang_on_the_devices(on_two):
    """Four batches over which steps do not commute, on 1 and 2 devices; another key ends elsewhere.

    A model drawn by a program of 1, 2 and 4 devices is the same.
    """
    rng = np.random.default_rng(0)
    clients, schedule = [rows(128, a=rng.uniform(0, 1, 128), b=rng.normal(size=128))], rounds([[0]])
    mesh, round_fn = on_two
    one, _ = run(clients, schedule)
    two, _ = run(clients, schedule, round_fn, mesh=mesh)
    other, _ = run(clients, schedule, state=one_number.start(seed=5))
    assert two == pytest.approx(one, rel=1e-6) and abs(other - one) > 1e-4
    models = []
    for devices in (1, 2, 4):
        everywhere = NamedSharding(mesh_of(devices), PartitionSpec())
        drawn = jax.jit(softmax_task().init, out_shardings=everywhere)(jax.random.key(0))
        models.append(np.asarray(drawn["w"]))
    assert np.ptp(models, axis=0).max() == 0 < np.ptp(models[0])
