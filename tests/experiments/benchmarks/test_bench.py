"""experiments.bench and accelerator: every workload small, what is counted, the command line."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from ccfl_jax.models import Logistic
from experiments import accelerator, bench
from experiments.benchmarks import measure, workloads
from experiments.config import bench_flags
from experiments.config.bench_flags import CASES, WORKLOADS, Case

MAIN = Path(__file__).parents[3]
KEYS = {
    *("workload", "device", "devices", "lanes", "samples_per_s", "client_updates_per_s"),
    *("rounds_per_s", "pieces", "rounds", "compile_s", "first_round_s", "host_mb", "device_mb"),
    *("useful_steps", "gflops", "product_gflops", "against"),
}


def noise(count=60):
    return workloads._images(np.random.default_rng([0]), count, (28, 28, 1))


SMALL = {
    "fmnist_cnn": partial(
        workloads.fmnist_cnn, batch_size=5, num_clients=5, rounds=4, train=noise()
    ),
    "stackoverflow_lr": partial(
        workloads.stackoverflow_lr, batch_size=4, num_clients=3, samples=4, rounds=4
    ),
    "cifar_resnet20": partial(
        workloads.cifar_resnet20, batch_size=2, num_clients=2, samples=2, rounds=4
    ),
    "logistic_many": partial(
        workloads.logistic_many, num_clients=500, buffer_size=70, rounds=4, rows=50
    ),
    "async": partial(
        workloads.asynchronous, 4, batch_size=2, buffer_size=2, num_clients=8, rounds=8
    ),
}


@pytest.fixture(autouse=True)
def a_small_product(monkeypatch):
    monkeypatch.setattr(measure, "_PRODUCT", 64)
    monkeypatch.setattr(workloads, "TABLE_SIZE", (50, 12))
    monkeypatch.setattr(measure, "_PIECES", 2)


@pytest.mark.parametrize("name", bench_flags.WORKLOADS)
def test_every_workload_runs(name, monkeypatch):
    monkeypatch.setattr(
        workloads, "ResNet20", lambda lowering: Logistic(10)
    )  # what counts here compiles in a moment
    monkeypatch.setattr(workloads, "CNN", lambda **lowering: Logistic(10))
    workload = SMALL[name]()
    result = measure.measure(workload, 0.01)
    assert result.keys() == KEYS
    rates = ("samples_per_s", "client_updates_per_s", "rounds_per_s", "gflops", "product_gflops")
    assert all(np.isfinite(result[rate]) and result[rate] > 0 for rate in rates)
    # Pieces differ in their work, so the medians need not be of one piece; slots are all filled.
    slots = workload.schedule.client.shape[1]
    assert result["client_updates_per_s"] == pytest.approx(slots * result["rounds_per_s"], rel=1e-6)
    assert result["first_round_s"] > result["compile_s"] > 0
    assert 0 < result["useful_steps"] <= 1
    assert result["pieces"] >= 2 and result["rounds"] >= 2


def test_pieces_go_on_from_each_other(monkeypatch):
    """Samples counted are those of the schedule's rows, in order and round and round."""
    monkeypatch.setattr(workloads, "CNN", lambda **lowering: Logistic(10))
    workload = SMALL["fmnist_cnn"]()
    advance = measure._prepare(workload, None, 1)
    sizes = np.asarray(workload.data.sizes)
    for first, count in ((0, 1), (1, 2), (3, 3)):  # the last one passes the end
        rows = [k % 4 for k in range(first, first + count)]
        info = advance(measure.cut(workload.schedule, first, count))
        expected = [
            (workload.schedule.work[k] * sizes[workload.schedule.client[k]]).sum() for k in rows
        ]
        np.testing.assert_array_equal(info.samples.sum(1), expected)


def test_other_loops_take_turns_and_are_compared():
    seen = []

    def loop(piece):
        seen.append(len(piece.client))
        return 1000

    result = measure.measure(SMALL["logistic_many"](), 0.01, others={"loop": loop})
    assert set(seen) == {1} and len(seen) == result["pieces"] + 1  # one round to warm up
    other = result["against"]["loop"]
    assert other["times"] == pytest.approx(result["samples_per_s"] / other["samples_per_s"])


def test_useful_steps_by_hand():
    steps = np.array([[3, 1, 4, 1, 5]])
    assert measure.useful_steps(steps, 1) == 1
    assert measure.useful_steps(steps, 2) == 14 / (2 * 5 + 2 * 3 + 2 * 1)  # 5 4 | 3 1 | 1 -
    assert measure.useful_steps(steps, 5) == 14 / (5 * 5)


def test_operations_of_the_networks():
    cnn = 2 * (2 * 86_400 + 3 * (153_600 + 41_640))
    assert cnn == workloads.CNN_FLOPS
    resnet = SMALL["cifar_resnet20"]()
    forward = 40_551_040  # multiplications of the 20-layer network in one 32 x 32 image
    first = 32 * 32 * 16 * 27
    assert resnet.flops == 2 * (3 * forward - first)


def test_clients_of_the_index_structure_are_whole():
    data = SMALL["logistic_many"]().data
    assert len(data) == 500 and data.offsets[0] == 0 and data.offsets[-1] == len(data.indices)
    assert np.diff(data.offsets).min() >= 1 and np.diff(data.offsets).max() <= 40
    assert data.indices.min() >= 0 and data.indices.max() < 50


def test_staleness_matches_the_concurrency():
    for concurrency, delay in ((10, 1), (100, 10), (1000, 100)):
        schedule = workloads.asynchronous(concurrency, num_clients=1000).schedule
        assert schedule.staleness.max() == delay
        assert (schedule.work == 5).all()
        assert (schedule.staleness <= np.arange(schedule.num_rounds)[:, None]).all()


def test_a_batch_size_replaces_that_of_every_case():
    def sizes(workload, size=None):
        options = bench_flags.Options(workload=workload, batch_size=size)
        return [case.settings.get("batch_size") for case in bench_flags.cases(options)]

    assert sizes("fmnist_cnn") == [20, 50]
    assert sizes("fmnist_cnn", 7) == [7]
    assert sizes("async", 7) == [7] * 3


def test_command_line_writes_what_it_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(workloads, "logistic_many", SMALL["logistic_many"])
    path = tmp_path / "bench.json"
    argv = ["bench", "--workload=logistic_many", "--seconds=0.01", f"--json={path}", "--lanes=3"]
    assert bench.main([*argv, "--devices=2"]) == 0
    (result,) = json.loads(path.read_text())
    assert result.keys() == KEYS | {"case"} and result["lanes"] == 3 and result["devices"] == 2
    assert "logistic_many: " in capsys.readouterr().out


@pytest.mark.parametrize(
    "flag", ["--workload=mnist", "--seconds=0", "--lanes=1.5", "--against=jax", "--devices=-1"]
)
def test_wrong_flags_are_refused(flag, capsys):
    name, value = flag.split("=")
    value = {"0": "0.0", "-1": "-1"}.get(value, repr(value))
    assert bench.main(["bench", flag]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"bench: {name}: expected , found {value}") and error.count("\n") == 1


def test_more_devices_than_there_are_are_refused(capsys):
    assert bench.main(["bench", f"--devices={jax.device_count() + 1}"]) == 2
    assert f"legal: 1 to {jax.device_count()}" in capsys.readouterr().err


def test_without_torch_the_comparison_is_refused(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "experiments.benchmarks.torch_loops", raising=False)
    assert bench.main(["bench", "--against=torch"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "--against: found torch" in error


def test_the_library_does_not_import_the_experiments():
    code = "import sys, ccfl_jax; sys.exit(any(m.startswith('experiments') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=MAIN).returncode == 0


@pytest.mark.parametrize("name", bench_flags.WORKLOADS)
def test_torch_loops_count_the_same_samples(name, monkeypatch):
    pytest.importorskip("torch")
    from experiments.benchmarks import torch_loops

    monkeypatch.setattr(torch_loops, "TABLE_SIZE", workloads.TABLE_SIZE)
    workload = SMALL[name]()
    piece = workload.schedule.rounds(0, 2)
    ours = measure._prepare(workload, None, 1)(piece).samples.sum()
    for loop in torch_loops.loops(workload).values():
        assert loop(piece) == ours


@pytest.fixture
def small(monkeypatch):
    """Workloads of a few samples, with models that compile in a moment."""
    monkeypatch.setattr(workloads, "CNN", lambda lowering: Logistic(10))
    monkeypatch.setattr(workloads, "ResNet20", lambda lowering: Logistic(10))
    names = {"fmnist_cnn": "fmnist_cnn", "cifar_resnet20": "cifar_resnet20"}
    for name in names:
        plain, tiny = getattr(workloads, name), SMALL[name].keywords | {"buffer_size": 5}
        tiny = tiny if name == "fmnist_cnn" else SMALL[name].keywords

        def build(plain=plain, tiny=tiny, **settings):
            return plain(**(settings | tiny))

        monkeypatch.setattr(workloads, name, build)
    own = [case for case in CASES["accelerator"] if case not in CASES["all"]]
    kept = [case for case in own if case.workload in names]
    monkeypatch.setitem(bench_flags.CASES, "accelerator", kept)
    return kept


def test_cases_cover_lanes_lowerings_dtypes_and_rates():
    cases = CASES["accelerator"]
    assert len(cases) == sum(map(len, WORKLOADS.values())) + 3 + 6 + 3 + 2
    assert [case.lanes for case in cases if case.lanes] == [1, 5, 32]
    lowerings = {(c.workload, c.settings["lowering"]) for c in cases if "lowering" in c.settings}
    assert len(lowerings) == 6
    assert sum(case.settings.get("compute_dtype") == "bfloat16" for case in cases) == 3
    assert [case.rates for case in cases if case.rates] == ["apart", "together"]
    assert all(hasattr(workloads, case.workload) for case in cases)


def test_command_measures_all_cases(small, tmp_path, monkeypatch, capsys):
    path = tmp_path / "results.json"
    some = [small[0], Case("fmnist_cnn", {"batch_size": 20}, rates="together")]
    monkeypatch.setitem(bench_flags.CASES, "accelerator", some)
    assert accelerator.main(["accelerator", "--seconds=0.01", f"--json={path}"]) == 0
    results = json.loads(path.read_text())
    assert len(results) == 2 and not any("error" in result for result in results)
    assert all(result["samples_per_s"] > 0 for result in results)
    said = capsys.readouterr().out
    assert "fmnist_cnn batch_size=20 buffer_size=32 lanes=1: " in said
    assert "fmnist_cnn batch_size=20 rates=together: " in said


def test_what_fails_or_has_no_time_is_named_and_the_rest_goes_on(small, tmp_path, monkeypatch):
    def fail(*args, **settings):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: too much\nof it")

    monkeypatch.setattr(measure, "measure", fail)
    rates = {"samples_per_s": 1.0, "gflops": 1.0}
    monkeypatch.setattr(measure, "measure_rates", lambda *_: rates)
    path = tmp_path / "results.json"
    assert accelerator.main(["accelerator", f"--json={path}"]) == 0
    results = json.loads(path.read_text())
    count = len(small) - 2
    assert [r.get("error") for r in results] == ["RESOURCE_EXHAUSTED: too much"] * count + [
        None
    ] * 2
    accelerator.main(["accelerator", f"--json={path}", "--minutes=1e-9"])
    assert {r["error"] for r in json.loads(path.read_text())} == {"left out, out of time"}


def test_rates_together_and_apart_are_the_same_runs(monkeypatch):
    monkeypatch.setattr(workloads, "CNN", lambda lowering: Logistic(10))
    workload = SMALL["fmnist_cnn"]()
    trials = partial(measure.rate_trials, workload)
    ends = [trials(how)(workload.schedule)[0].params for how in (False, True)]
    for apart, together in zip(*map(jax.tree.leaves, ends), strict=True):
        assert apart.shape[0] == 9
        np.testing.assert_allclose(apart, together, rtol=1e-5, atol=1e-6)
        assert len(np.unique(np.asarray(apart).reshape(9, -1), axis=0)) == 9
