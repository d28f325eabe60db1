"""experiments.bench and accelerator: every workload small, what is counted, the command line."""

import contextlib
import json
import sys
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from small_workloads import TINY

from ccfl_jax.models import Logistic
from experiments import accelerator, bench
from experiments.benchmarks import measure, methods, suite, workloads
from experiments.config import bench_flags
from experiments.config.bench_flags import CASES, Case

KEYS = {
    *("workload", "device", "devices", "lanes", "samples_per_s", "client_updates_per_s"),
    *("rounds_per_s", "pieces", "rounds", "compile_s", "first_round_s", "host_mb", "device_mb"),
    *("memories", "useful_steps", "gflops", "product_gflops", "against", "fastest"),
}
SMALL = {
    name: partial(getattr(workloads, name), rounds=4, **tiny)
    for name, tiny in (TINY | {"memory": {}}).items()  # that of logistic_many above it
}
LONG = {*SMALL} - {"logistic_many", "memory"}  # a compilation each; one by default


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few samples and pieces, and models that compile in a moment."""
    monkeypatch.setattr(measure, "_PRODUCT", 64)
    monkeypatch.setattr(measure, "_PIECES", 2)
    monkeypatch.setattr(workloads, "TABLE_SIZE", (50, 12))
    for model in ("CNN", "ResNet18", "ResNet20"):
        monkeypatch.setattr(workloads, model, lambda **_: Logistic(10))
    for name, build in SMALL.items():
        tiny = lambda f=build, **own: f(**(own | f.keywords))  # noqa: E731
        monkeypatch.setattr(workloads, name, tiny)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in LONG else []) for n in SMALL]
)
def test_every_workload_is_timed_in_turn_with_another_loop(name):
    seen = []

    def loop(piece):
        seen.append(piece.num_rounds)
        return 1000

    workload = SMALL[name]()
    result = measure.measure(workload, 0.01, others={"loop": loop})
    assert result.keys() == KEYS
    rates = ("samples_per_s", "client_updates_per_s", "rounds_per_s", "gflops", "product_gflops")
    assert all(np.isfinite(result[rate]) and result[rate] > 0 for rate in rates)
    updates = workload.schedule.num_slots * result["rounds_per_s"]  # all slots are filled
    assert result["client_updates_per_s"] == pytest.approx(updates, rel=1e-6)
    assert result["first_round_s"] > result["compile_s"] > 0
    assert 0 < result["useful_steps"] <= 1
    assert result["pieces"] >= 2 and result["rounds"] >= 2
    assert seen[0] == 1 and len(seen) == result["pieces"] + 1  # one round to warm up
    assert sum(seen[1:]) == result["rounds"]  # the same pieces
    assert result["against"]["loop"]["times"] > 0 and result["memories"] == 0


def test_times_are_the_median_of_each_pieces_ratio(monkeypatch):
    """Ours takes 4, 2 and 1 s for 8 samples, the other loop 2, 2 and 2 s."""
    monkeypatch.setattr(measure, "_PIECES", 3)
    info = SimpleNamespace(**{name: np.full((1, 1), 8) for name in ("samples", "present", "steps")})
    theirs = {"loop": [4.0, 4.0, 4.0]}
    pieces = [(info, seconds) for seconds in (4.0, 2.0, 1.0)]
    monkeypatch.setattr(measure, "_time_pieces", lambda *_: (pieces, theirs))
    monkeypatch.setattr(measure, "_prepare", lambda *_: (lambda piece: info, 0))
    found = measure.measure(SMALL["logistic_many"](), 0.01)["against"]["loop"]
    assert found == {"samples_per_s": 4.0, "times": 1.0}  # of 0.5, 1 and 2


def method_names():
    return {case.method for case in CASES["all"]} - {None}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.slow if n != "median" else [])
        for n in sorted(method_names())
    ],
)
def test_every_method_is_timed_in_turn_with_cc_fedavg(name):
    workload = SMALL["fmnist_cnn"]()
    method = getattr(methods, name)(workload.local_lr)
    result = measure.measure(workload, 0.01, method=method)
    assert result.keys() == KEYS and result["against"].keys() == {"cc_fedavg"}
    assert result["against"]["cc_fedavg"]["samples_per_s"] > 0
    assert result["memories"] == (5 if method.rule and name != "fedprox" else 0)


def test_memories_are_bounded_by_the_plan(monkeypatch):
    """Of clients that come again at once, not of all 500; also where the schedule repeats."""
    monkeypatch.setattr(measure, "_PIECES", 5)  # of a round at least: past the schedule's four
    workload = SMALL["memory"]()
    method = methods.scaffold(workload.local_lr)
    result = measure.measure(workload, 0.01, method=method)
    assert 1 < result["memories"] == workload.schedule.memory_rows() < 500
    assert result["rounds"] > 4 and result["against"]["cc_fedavg"]["times"] > 0


def test_pieces_go_on_from_each_other():
    """Samples counted are those of the schedule's rows, in order and round and round."""
    workload = SMALL["fmnist_cnn"]()
    advance, _ = measure._prepare(workload, None, 1)
    schedule, sizes = workload.schedule, np.asarray(workload.data.sizes)
    samples = (schedule.work * sizes[schedule.client]).sum(1)
    for first, count in ((0, 1), (1, 2), (3, 3)):  # the last one passes the end
        info = advance(measure.cut(schedule, first, count))
        expected = samples[np.arange(first, first + count) % 4]
        np.testing.assert_array_equal(info.samples.sum(1), expected)


def test_torch_loops_do_one_round_of_a_piece(monkeypatch):
    workload, seen = SMALL["logistic_many"](), []
    loops = {"torch": lambda piece: seen.append(piece)}
    module = SimpleNamespace(loops=lambda workload: contextlib.nullcontext(loops))
    monkeypatch.setitem(sys.modules, "experiments.benchmarks.torch_loops", module)
    with suite._loops("torch")(workload) as found:
        found["torch"](workload.schedule.rounds(1, 3))
    np.testing.assert_array_equal(seen[0].client, workload.schedule.client[1:2])


def test_the_fastest_of_several_loops_is_named(monkeypatch):
    info = SimpleNamespace(**{name: np.full((1, 1), 8) for name in ("samples", "present", "steps")})
    theirs = {"slow": [1.0, 9.0, 2.0], "fast": [3.0, 1.0, 4.0]}  # medians 2 and 3
    monkeypatch.setattr(measure, "_time_pieces", lambda *_: ([(info, 1.0)] * 3, theirs))
    monkeypatch.setattr(measure, "_prepare", lambda *_: (lambda piece: info, 0))
    result = measure.measure(SMALL["logistic_many"](), 0.01) | {"case": {"workload": "x"}}
    assert result["fastest"] == "fast"
    assert suite._report(result).endswith("fast, 3 samples/s, the fastest of these")


def test_useful_steps_by_hand():
    steps = np.array([[3, 1, 4, 1, 5]])
    assert measure.useful_steps(steps, 1) == 1
    assert measure.useful_steps(steps, 2) == 14 / (2 * 5 + 2 * 3 + 2 * 1)  # 5 4 | 3 1 | 1 -
    assert measure.useful_steps(steps, 5) == 14 / (5 * 5)


def test_operations_of_the_networks():
    assert workloads.CNN_FLOPS == 2 * (2 * 86_400 + 3 * (153_600 + 41_640))
    forward = 40_551_040  # multiplications of the 20-layer network in one 32 x 32 image
    first = 32 * 32 * 16 * 27
    assert SMALL["cifar_resnet20"]().flops == 2 * (3 * forward - first)
    # Stages of 32, 16, 8, 4 pixels: four 3 x 3 kernels, from the second on one of them half as
    # wide and a pointwise one, all of 64 x 64 x 32 x 32 multiplications a kernel position.
    each = 64 * 64 * 32 * 32
    first, forward = 32 * 32 * 64 * 27, 4 * 9 * each + 3 * (9 * (3 + 0.5) + 0.5) * each + 512 * 10
    assert SMALL["cifar_resnet18"]().flops == 2 * (2 * first + 3 * forward)


def test_clients_of_the_index_structure_are_whole():
    data = SMALL["logistic_many"]().data
    sizes = np.diff(data.offsets)
    assert len(data) == 500 and data.offsets[0] == 0 and data.offsets[-1] == len(data.indices)
    assert 1 <= sizes.min() <= sizes.max() <= 40 and {*data.indices} <= {*range(50)}


@pytest.mark.parametrize(("concurrency", "delay"), [(10, 1), (100, 10), (1000, 100)])
def test_staleness_matches_the_concurrency(concurrency, delay):
    schedule = SMALL["asynchronous"].func(concurrency, num_clients=1000).schedule
    assert schedule.staleness.max() == delay
    assert (schedule.work == 5).all()
    assert (schedule.staleness <= np.arange(schedule.num_rounds)[:, None]).all()


@pytest.mark.parametrize(
    ("workload", "size", "sizes"),
    [("fmnist_cnn", None, [20, 50]), ("fmnist_cnn", 7, [7]), ("async", 7, [7] * 3)],
)
def test_a_batch_size_replaces_that_of_every_case(workload, size, sizes):
    options = bench_flags.Options(workload=workload, batch_size=size)
    assert [case.settings.get("batch_size") for case in bench_flags.cases(options)] == sizes


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--workload=mnist", "fmnist_cnn, ..., found 'mnist'; did you mean fmnist_cnn?"),
        ("--seconds=0", "a number > 0, at most 3.4e38, found 0.0"),
        ("--lanes=1.5", "an integer from 1 to ..., found '1.5'"),
        ("--against=jax", "torch, found 'jax'"),
        ("--against=torch", "torch to be installed, found it missing"),
        ("--devices=-1", "an integer from 1 to ..., found -1"),
        ("--devices=5", "1 to 4, the cpu devices here, found 5"),
    ],
)
def test_wrong_flags_are_refused(flag, message, monkeypatch, refuses):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "experiments.benchmarks.torch_loops", raising=False)
    refuses(f"{flag.partition('=')[0]}: expected {message}", bench.main, "bench", flag)


@pytest.mark.slow
def test_commands_write_what_they_measured(tmp_path, monkeypatch, capsys):
    def measured(main, *args):
        path = tmp_path / "results.json"
        assert main([main.__module__, "--seconds=0.01", f"--json={path}", *args]) == 0
        return json.loads(path.read_text()), capsys.readouterr().out

    flags = ["--workload=logistic_many", "--lanes=3", "--devices=2"]
    (result,), said = measured(bench.main, *flags)
    assert result.keys() == KEYS | {"case"} and result["lanes"] == 3 and result["devices"] == 2
    assert "logistic_many: " in said
    settings = {"batch_size": 20, "buffer_size": 32}
    some = [Case("fmnist_cnn", settings, lanes=1), Case("fmnist_cnn", settings, rates="together")]
    monkeypatch.setitem(CASES, "accelerator", some)
    results, said = measured(accelerator.main)
    assert len(results) == 2 and not any("error" in result for result in results)
    assert all(result["samples_per_s"] > 0 for result in results)
    for own in ("lanes=1", "rates=together"):
        assert f"fmnist_cnn batch_size=20 buffer_size=32 {own}: " in said


def test_what_fails_or_has_no_time_is_named_and_the_rest_goes_on(tmp_path, monkeypatch):
    def fail(*args, **settings):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: too much\nof it")

    monkeypatch.setattr(measure, "measure", fail)
    monkeypatch.setattr(measure, "measure_rates", lambda *_: {"samples_per_s": 1.0, "gflops": 1.0})
    for name in {case.workload for case in CASES["accelerator"]}:
        monkeypatch.setattr(workloads, name, lambda **_: SimpleNamespace(local_lr=0.1))

    def errors(*args):
        path = tmp_path / "results.json"
        assert accelerator.main(["accelerator", f"--json={path}", *args]) == 0
        return [result.get("error") for result in json.loads(path.read_text())]

    cases = CASES["accelerator"]
    lost = "RESOURCE_EXHAUSTED: too much"
    assert errors() == [None if case.rates else lost for case in cases]
    assert errors("--minutes=1e-9") == ["left out, out of time"] * len(cases)


@pytest.mark.slow
def test_rates_together_and_apart_are_the_same_runs():
    workload = SMALL["fmnist_cnn"]()
    trials = partial(measure.rate_trials, workload)
    ends = [trials(how)(workload.schedule)[0].params for how in (False, True)]
    for apart, together in zip(*map(jax.tree.leaves, ends), strict=True):
        assert apart.shape[0] == 9
        np.testing.assert_allclose(apart, together, rtol=1e-5, atol=1e-6)
        assert len(np.unique(np.asarray(apart).reshape(9, -1), axis=0)) == 9
