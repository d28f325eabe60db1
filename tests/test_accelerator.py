"""experiments.accelerator: every case is what it says, results and errors are kept."""

import json
from functools import partial

import jax
import numpy as np
import pytest
from test_bench import SMALL, a_small_product  # noqa: F401

from ccfl_jax.models import Logistic
from experiments import accelerator
from experiments.benchmarks import measure, workloads
from experiments.config import bench_flags
from experiments.config.bench_flags import CASES, WORKLOADS, Case


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
