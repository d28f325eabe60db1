"""The benchmark of sizes: what is varied, what is timed, and the table."""

import jax
import numpy as np
import pytest

from experiments import bench
from experiments.benchmarks import measure, scale
from experiments.config.bench_flags import CASES
from experiments.training import devices

TINY = {"clients": 30, "slots": 4, "rounds": 8}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(measure, "_PRODUCT", 64)
    monkeypatch.setattr(scale, "_ROUNDS", 2)


@pytest.mark.parametrize("parameters", [1_000, 100_000_000])
def test_a_workload_has_the_sizes_asked_for(parameters):
    own = scale.workload(clients=30, slots=4, history=5, parameters=parameters)
    shapes = jax.eval_shape(own.task.init, jax.random.key(0))
    found = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert found == pytest.approx(parameters, rel=0.04)  # a hidden unit has 71
    assert len(own.data) == 30 and (np.diff(own.data.offsets) == 10).all()
    assert own.schedule.num_slots == 4 and own.schedule.staleness.max() == 4
    assert own.batch_size == 10 and (own.schedule.work == 1).all()  # one step


@pytest.mark.parametrize("trials", [1, 3])
def test_rounds_of_all_trials_are_timed(trials):
    found = scale.case(0.01, devices.mesh(2), trials=trials, **TINY)
    assert found["client_updates_per_s"] == pytest.approx(4 * found["rounds_per_s"])
    assert found["rounds_per_s"] > 0 and found["first_round_s"] > 0
    assert found["data_mb"] == (300 * 61 * 4 + 300 * 4 + 31 * 4) / 1e6
    assert found["host_mb"] > found["data_mb"] + found["model_mb"]


def test_each_size_is_varied_alone_from_one_that_is_timed():
    settings = [case.settings for case in CASES["scale"]]
    assert all(len(one) == 1 for one in settings) and {"clients": 10_000} in settings
    assert not {id(case) for case in CASES["scale"]} & {id(case) for case in CASES["all"]}


def test_the_table_has_a_line_for_each_size():
    whole = dict.fromkeys(scale._COLUMNS.values(), 1234.5)
    results = [
        {"case": {"settings": {"clients": 1000}}, **whole},
        {"case": {"settings": {"parameters": 10**9}}, "data_mb": 2.0, "error": "out of memory"},
    ]
    *_, first, second = scale.table(results).splitlines()
    assert first == "| 1,000 clients | 1234 | 1234 | 1234 | 1234 | 1234 | 1234 |"
    assert second == "| 1,000,000,000 parameters | - | - | - | 2 | - | - |"


@pytest.mark.parametrize("flag", ["--against=torch", "--batch_size=3"])
def test_flags_without_a_use_are_refused(flag, refuses):
    name, _, value = flag.partition("=")
    message = f"{name}: expected none for scale, found {value}"
    refuses(message, bench.main, "bench", "--workload=scale", flag)


def test_a_peak_is_that_since_it_was_forgotten():
    del (kept := [np.ones(60_000_000)])[:]  # 480 MB, for a moment
    before = measure.peak_mb()
    measure.forget_peak()
    assert kept == [] and measure.peak_mb() < before - 300
