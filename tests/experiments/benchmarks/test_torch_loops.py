"""The PyTorch loops of the benchmarks: what is counted, and that both ways train the same."""

import jax
import numpy as np
import pytest
from small_workloads import TINY

import ccfl_jax as ccfl
from experiments.benchmarks import workloads
from experiments.training import devices

torch = pytest.importorskip("torch")
torch_clients = pytest.importorskip("experiments.benchmarks.torch_clients")
torch_loops = pytest.importorskip("experiments.benchmarks.torch_loops")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(workloads, "TABLE_SIZE", (50, 12))
    monkeypatch.setattr(torch_loops, "TABLE_SIZE", (50, 12))
    monkeypatch.setattr(devices, "cores", lambda: 1)


@pytest.mark.parametrize("name", TINY)
def test_loops_count_the_useful_samples(name):
    workload = getattr(workloads, name)(rounds=4, **TINY[name])
    piece, sizes = workload.schedule.rounds(0, 2), np.diff(workload.data.offsets)
    per_unit = workload.batch_size if name == "asynchronous" else sizes[piece.client]
    with torch_loops.loops(workload) as loops:
        for loop in loops.values():
            assert loop(piece) == (piece.work * per_unit).sum()


def whole_batches():
    """Clients with batches of all their samples, so that nothing is drawn; stale models."""
    own = workloads.logistic_many(num_clients=500, buffer_size=7, rows=50, rounds=4)
    schedule = ccfl.random_schedule(0, 4, 500, 7, 2, 1, 3)
    return own._replace(schedule=schedule, batch_size=100)


@pytest.mark.parametrize("processes", [1, 2])
def test_rounds_are_those_of_our_engine(processes, monkeypatch):
    """From the same weights: ours, and PyTorch's in one process and in two."""
    workload, kept = whole_batches(), []
    monkeypatch.setattr(devices, "cores", lambda: processes)
    monkeypatch.setattr(
        torch_loops, "_clients", lambda *a, of=torch_loops._clients: kept.append(of(*a)) or kept[-1]
    )
    params = workload.task.init(jax.random.key(0))
    (layer,) = params.values()
    with torch_loops.loops(workload) as loops:
        assert [*loops] == ["torch", f"torch, {processes} processes"][:processes]
        loop, own = list(loops.values())[-1], kept[-1]
        start = np.concatenate([np.asarray(layer["kernel"]).T.ravel(), layer["bias"]])
        own.past[:] = torch.from_numpy(start)
        loop(workload.schedule)
        found = own.past[4 % len(own.past)].numpy()
    state = ccfl.init_state(workload.task, ccfl.cc_fedavg(), jax.random.key(0), 3, params=params)
    round_fn = ccfl.build_round(workload.task, ccfl.cc_fedavg(), 0.1, 100, normalise="none")
    (layer,) = ccfl.run_rounds(round_fn, state, workload.schedule, workload.data)[0].params.values()
    expected = np.concatenate([np.asarray(layer["kernel"]).T.ravel(), layer["bias"]])
    assert np.abs(expected - start).max() > 0.01
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_longest_visits_go_first_to_who_has_least():
    visits = np.arange(5)[:, None].repeat(3, 1)
    shares = torch_loops._shares(visits, np.array([1, 5, 3, 3, 4]), 2)
    assert [[client for client, *_ in share] for share in shares] == [
        [1, 3],
        [4, 2, 0],
    ]


@pytest.mark.parametrize(("project", "parameters"), [(False, 269_722), (True, 11_173_962)])
def test_channels_last_is_the_same_network(project, parameters):
    torch.manual_seed(0)
    plain, last = torch_clients.ResNet(project), torch_clients.ResNet(project)
    assert sum(p.numel() for p in plain.parameters()) == parameters  # those of `models.resnet`
    last = last.to(memory_format=torch.channels_last)
    weights = torch_clients.flat(plain)
    torch_clients.load(last, weights)
    assert torch.equal(torch_clients.flat(last), weights)
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(last(x), plain(x), rtol=1e-4, atol=1e-5)
