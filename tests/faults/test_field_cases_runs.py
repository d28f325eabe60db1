"""Faults people met in other simulators, as `test_field_cases.py`: resumes, memory, programs."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import one_number
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.tree_util import Partial
from one_number import rounds, rows
from problems import counting, one_row_data
from small_runs import config_of, restored

import ccfl_jax as ccfl
from ccfl_jax.engine import programs
from ccfl_jax.runs import checkpoints
from experiments.training import devices

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """Adam with rate 0.1 (c + 1), uploads 1, 1 and 1, saved and restored, then an upload of 0:
    x after each round, the state after the last."""
    folder = tmp_path_factory.mktemp("resumed")
    server = ccfl.cc_fedadam(lambda count: 0.1 * (count + 1.0))
    round_fn = ccfl.build_round(one_number.TASK, server, 1.0, one_number.BATCH)
    data, schedule = one_number.data_of(rows(b=1.0), rows()), rounds([[0], [0], [0], [1]])
    # On its device, as a restored state is: both run the same program.
    start = state = jax.device_put(one_number.start(server=server), jax.devices()[0])
    places = [1.0]
    for t in range(4):
        if t == 3:
            kept = checkpoints.open_checkpoints(folder)
            checkpoints.save(kept, state)
            checkpoints.close(kept)
            state = restored(folder, start)
        state, _ = ccfl.run_rounds(round_fn, state, schedule.rounds(t, t + 1), data)
        places.append(float(state.params["x"]))
    return np.array(places), state


def adam_steps(uploads):
    """Each m / (sqrt v + eps), without bias correction."""
    m = v = 0.0
    for d in uploads:
        m, v = 0.1 * d + 0.9 * m, 0.01 * d + 0.99 * v
        yield m / (np.sqrt(v) + 1e-3)


def test_so_10_a_rate_schedule_goes_on_after_a_resume(resumed):
    """Rates 0.1, 0.2, 0.3, and 0.4 after the resume."""
    places, _ = resumed
    rates = -np.diff(places) / [*adam_steps((1, 1, 1, 0))]
    np.testing.assert_allclose(rates, [0.1, 0.2, 0.3, 0.4], rtol=1e-5)


def test_rr_04_a_step_without_gradient_after_a_resume_is_the_momentums(resumed):
    places, state = resumed
    *_, step = adam_steps((1, 1, 1, 0))
    assert places[3] - places[4] == pytest.approx(0.4 * step, rel=1e-5) and step > 1
    assert int(state.server[0].count) == 4


def test_mc_02_a_sweep_over_rates_compiles_once_and_keeps_nothing():
    """Of five rates one program is made and one is kept."""
    data, schedule = one_number.data_of(rows(a=1.0)), rounds([[0]])

    def round_at(rate, *rest):
        return ccfl.build_round(one_number.TASK, one_number.SERVER, rate)(*rest)

    counted, traces = counting(round_at)
    found, compiled = [], []
    for rate in (0.1, 0.2, 0.3, 0.01, 0.5):
        fn = Partial(counted, np.float32(rate))
        end, _ = ccfl.run_rounds(fn, one_number.start(), schedule, data)
        found.append(1 - float(end.params["x"]))
        compiled.append(len(traces))
    np.testing.assert_allclose(found, [0.1, 0.2, 0.3, 0.01, 0.5], rtol=1e-5)
    (program,) = programs._kept[counted].values()
    assert compiled == [compiled[0]] * 5 and program._cache_size() == 1


def test_mc_08_a_spoilt_compilation_cache_stops_no_run(tmp_path):
    """Kept programs emptied, replaced and cut in half, and foreign files beside them."""
    before = jax.config.jax_compilation_cache_dir
    sums = [jax.jit(lambda x, k=k: (x**k).sum()) for k in (2, 3, 4)]
    x, found = jnp.arange(3.0), []
    try:
        for _ in range(2):
            compilation_cache.reset_cache()
            devices.start(config_of(f"--compilation_cache={tmp_path}"))
            jax.clear_caches()
            found.append([float(one(x)) for one in sums])
            kept = [path for path in sorted(tmp_path.rglob("*")) if path.is_file()]
            for number, path in enumerate(kept):
                content = path.read_bytes()
                path.write_bytes([b"", b"no program", content[: len(content) // 2]][number % 3])
                path.with_name(f"stray{number}").write_bytes(b"\0garbage")
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        compilation_cache.reset_cache()
    assert found == [[5.0, 9.0, 17.0]] * 2 and len(kept) > 3


def test_mc_10_a_history_costs_its_models_and_little_more():
    """50 models of a million float32 are 200 MB; a round takes less than a fifth besides."""
    task = ccfl.Task(
        lambda key: jnp.zeros(1_000_000), lambda params, *_: (params**2).sum(), lambda *_: {}
    )
    server, data = ccfl.cc_fedavg(), one_row_data()
    state = jax.eval_shape(lambda: ccfl.init_state(task, server, jax.random.key(0), 50))
    assert sum(4 * leaf.size for leaf in jax.tree.leaves(state.history.models)) == 200_000_000
    row = ccfl.Schedule(*(np.zeros(1, np.int32) for _ in range(3)), np.ones(1, bool))
    round_fn = ccfl.build_round(task, server, lanes=1)
    memory = jax.jit(round_fn, donate_argnums=0).lower(state, row, data).compile().memory_analysis()
    new = memory.output_size_in_bytes - memory.alias_size_in_bytes
    assert memory.temp_size_in_bytes + new < 0.2 * 200_000_000


@pytest.mark.parametrize("platform", ["cuda", pytest.param("tpu", marks=pytest.mark.slow)])
def test_md_05_a_platform_that_is_not_there_is_an_error(tmp_path, platform):
    """Never the CPU instead."""
    if platform == "cuda" and Path("/dev/nvidia0").exists():
        pytest.skip("there is a GPU")
    command = [sys.executable, "-m", "experiments.train", "--dataset=digits", "--model=logistic"]
    command += ["--server_lr=0.1", "--compilation_cache=off", f"--out_dir={tmp_path / 'a'}"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": platform}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 2 and done.stdout == ""
    assert f"'{platform}'" in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "a").exists()
