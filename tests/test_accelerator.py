"""experiments.accelerator: every case is built as it says, results and errors are kept."""

import json
from functools import partial

import jax
import numpy as np
import pytest
from test_bench import SMALL, a_small_product  # noqa: F401

from ccfl_jax.models import Logistic
from experiments import accelerator, bench, workloads


@pytest.fixture
def small(monkeypatch):
    """Workloads of a few samples, with models that compile in a moment."""
    for name, net in (("CNN", "fmnist_cnn"), ("ResNet20", "cifar_resnet20")):
        monkeypatch.setattr(workloads, name, lambda lowering: Logistic(10))
        tiny = SMALL[net].keywords

        def build(tiny=tiny, net=net, **settings):
            return getattr(workloads, net)(**(settings | tiny))

        build.__name__ = net
        monkeypatch.setattr(accelerator, net, build)
    build = partial(SMALL["stackoverflow_lr"])
    build.__name__ = "stackoverflow_lr"
    monkeypatch.setattr(accelerator, "stackoverflow_lr", build)
    monkeypatch.setattr(accelerator, "CASES", {})
    monkeypatch.setattr(accelerator, "_COHORT", 5)


def test_cases_cover_lanes_lowerings_dtypes_and_rates():
    settings = [setting for setting, _ in accelerator.cases(0.01)]
    assert len(settings) == sum(map(len, workloads.CASES.values())) + 3 + 6 + 3 + 2
    lanes = [s["lanes"] for s in settings if "lanes" in s]
    assert lanes == [1, 5, 32]
    lowerings = {(s["workload"], s["lowering"]) for s in settings if "lowering" in s}
    assert len(lowerings) == 6
    assert sum(s.get("compute_dtype") == "bfloat16" for s in settings) == 3


def test_command_measures_all_cases(small, tmp_path, monkeypatch, capsys):
    measure_rates = partial(accelerator.measure_rates, **SMALL["fmnist_cnn"].keywords)
    monkeypatch.setattr(accelerator, "measure_rates", measure_rates)
    path = tmp_path / "results.json"
    assert accelerator.main(["accelerator", "--seconds=0.01", f"--json={path}"]) == 0
    results = json.loads(path.read_text())
    assert len(results) == 14 and not any("error" in result for result in results)
    assert all(result["samples_per_s"] > 0 for result in results)
    assert len(capsys.readouterr().out.splitlines()) == 15


def test_what_fails_or_has_no_time_is_named_and_the_rest_goes_on(small, tmp_path, monkeypatch):
    def fail(*args, **settings):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: too much\nof it")

    monkeypatch.setattr(bench, "measure", fail)
    rates = {"samples_per_s": 1.0, "gflops": 1.0}
    monkeypatch.setattr(accelerator, "measure_rates", lambda together, seconds: rates)
    path = tmp_path / "results.json"
    assert accelerator.main(["accelerator", f"--json={path}"]) == 0
    results = json.loads(path.read_text())
    assert [r.get("error") for r in results] == ["RESOURCE_EXHAUSTED: too much"] * 12 + [None] * 2
    accelerator.main(["accelerator", f"--json={path}", "--minutes=0"])
    assert {r["error"] for r in json.loads(path.read_text())} == {"left out, out of time"}


def test_rates_together_and_apart_are_the_same_runs(monkeypatch):
    monkeypatch.setattr(workloads, "CNN", lambda lowering: Logistic(10))
    workload = SMALL["fmnist_cnn"]()
    ends = [accelerator.trials(workload, how)(workload.schedule)[0].params for how in (False, True)]
    for apart, together in zip(*map(jax.tree.leaves, ends), strict=True):
        assert apart.shape[0] == 9
        np.testing.assert_allclose(apart, together, rtol=1e-5, atol=1e-6)
        assert len(np.unique(np.asarray(apart).reshape(9, -1), axis=0)) == 9
