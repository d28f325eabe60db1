"""Faults people met in other simulators, as `test_field_cases.py`: memory, resumes, whole runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from problems import counting, federated, make_schedule, softmax_task, values_of, values_task

import ccfl_jax as ccfl
from ccfl_jax.runs import checkpoints

ROOT = Path(__file__).parents[2]
DIGITS = [
    "--dataset=digits",
    "--model=logistic",
    "--num_clients=12",
    "--server_lr=0.1",
    "--devices=1",
    "--noprogress",
]
STATM = Path("/proc/self/statm")
needs_statm = pytest.mark.skipif(not STATM.exists(), reason="no /proc, so no resident memory")


def resident():
    """Bytes of memory that this process holds."""
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def command(folder, *args, **environment):
    """`experiments.train` as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "experiments.train", *DIGITS, f"--out_dir={folder}", *args],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **environment},
    )


def rows_of(folder):
    """The rows of a run without its clocks."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    clocks = ("seconds", "compile_seconds")
    return [{k: v for k, v in json.loads(line).items() if k not in clocks} for line in lines]


def run_and_resume(folder, server, clients, stop):
    """x after the rounds before `stop`, and after all, the state going through a checkpoint there.

    Client 0 uploads 1, client 1 uploads 0; one of them in each round.
    """
    task, data = values_task(), values_of([1.0], [0.0])
    schedule = make_schedule([[client] for client in clients])
    round_fn = ccfl.build_round(task, server, 1.0)
    fresh = ccfl.init_state(task, server, jax.random.key(0))
    state, _ = ccfl.run_rounds(round_fn, fresh, schedule.rounds(0, stop), data)
    kept = checkpoints.open_checkpoints(folder)
    checkpoints.save(kept, state)
    checkpoints.close(kept)
    kept = checkpoints.open_checkpoints(folder)
    saved, _ = checkpoints.restore(kept, fresh)
    checkpoints.close(kept)
    end, _ = ccfl.run_rounds(round_fn, saved.state, schedule.rounds(stop, len(clients)), data)
    return float(state.params["x"]), end


def test_so_10_a_rate_schedule_goes_on_after_a_resume(tmp_path):
    """lr(c) = c + 1, gradient 1: steps 1 and 2, and 3 after the resume."""
    server = ccfl.cc_fedsgd(lambda count: count + 1.0)
    before, end = run_and_resume(tmp_path, server, [0, 0, 0], 2)
    assert (before, float(end.params["x"])) == (-3.0, -6.0)


def test_rr_04_a_step_without_gradient_after_a_resume_is_the_momentums(tmp_path):
    """Adam, three rounds with upload 1, saved and restored, then one with upload 0."""
    before, end = run_and_resume(tmp_path, ccfl.cc_fedadam(0.1), [0, 0, 0, 1], 3)
    m = v = 0.0
    for d in (1, 1, 1, 0):
        m, v = 0.1 * d + 0.9 * m, 0.01 * d + 0.99 * v
    step = 0.1 * m / (np.sqrt(v) + 1e-3)
    assert step > 0.1
    assert before - float(end.params["x"]) == pytest.approx(step, rel=1e-5)
    assert int(end.server[0].count) == 4


@needs_statm
def test_mc_02_a_sweep_over_rates_compiles_once_and_keeps_nothing():
    """Resident memory after the fifth rate within 5 % of that after the second."""
    data, _, _ = federated([6, 4, 9, 15])
    schedule = ccfl.random_schedule(0, 20, 4, 3, max_delay=0)
    server = ccfl.cc_fedams(0.1)

    def round_at(rate, *rest):
        return ccfl.build_round(softmax_task(), server, rate, batch_size=4)(*rest)

    counted, traces = counting(round_at)
    held, compiled = [], []
    for rate in (0.1, 0.2, 0.3, 0.01, 0.5):
        state = ccfl.init_state(softmax_task(), server, jax.random.key(0))
        ccfl.run_rounds(Partial(counted, np.float32(rate)), state, schedule, data)
        held.append(resident())
        compiled.append(len(traces))
    assert compiled == [compiled[0]] * 5
    assert held[4] < 1.05 * held[1]


@needs_statm
def test_mc_07_memory_does_not_creep_up_round_by_round():
    """200 rounds run one by one, evaluated, their infos kept: under 0.1 MB a round after 20."""
    data, arrays, _ = federated([6, 4, 9, 15])
    task, server = softmax_task(), ccfl.cc_fedams(0.1)
    round_fn = ccfl.build_round(task, server, 0.1, batch_size=4)
    state = ccfl.init_state(task, server, jax.random.key(0), history_length=4)
    schedule = ccfl.random_schedule(0, 200, 4, 3, max_delay=3)
    infos = []
    for t in range(200):
        state, info = ccfl.run_rounds(round_fn, state, schedule.rounds(t, t + 1), data, donate=True)
        infos.append((info, ccfl.evaluate(task, state.params, arrays)))
        if t == 19:
            before = resident()
    assert resident() - before < 180 * 100_000
    for info, scores in infos:  # numbers of the host, and no view of more than these rounds
        assert all(type(a) is np.ndarray and a.flags.owndata for a in jax.tree.leaves(info))
        assert all(type(score) is float for score in scores.values())


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """One command as two processes with another hash seed; the second finds a spoilt cache."""
    folder = tmp_path_factory.mktemp("twice")
    args = ["--rounds=6", "--eval_every=3", "--max_delay=49"]
    args.append(f"--compilation_cache={folder / 'cache'}")
    pinned = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    first = command(folder / "a", *args, PYTHONHASHSEED="1", **pinned)
    kept = [path for path in (folder / "cache").rglob("*") if path.is_file()]
    for number, path in enumerate(kept):
        content = path.read_bytes()
        path.write_bytes([b"", b"no program", content[: len(content) // 2]][number % 3])
        path.with_name(f"stray{number}").write_bytes(b"\0garbage")
    second = command(folder / "b", *args, PYTHONHASHSEED="2", **pinned)
    return folder, first, second, len(kept)


def test_mc_08_a_spoilt_compilation_cache_stops_no_run(twice):
    _, first, second, kept = twice
    assert kept > 3
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr


def test_rr_12_two_processes_give_the_same_bits(twice):
    folder, *_ = twice
    assert rows_of(folder / "a") == rows_of(folder / "b")
    assert len(rows_of(folder / "a")) == 3


def test_mc_10_the_header_says_what_the_history_costs(twice):
    """50 models of 650 parameters, 4 bytes each: 0.13 MB, said before the first result."""
    lines = twice[1].stdout.splitlines()
    (said,) = [k for k, line in enumerate(lines) if "history of 50 models, 0.13 MB" in line]
    (result,) = [k for k, line in enumerate(lines) if line.startswith("result")]
    assert said < result


def test_mc_10_a_history_costs_its_models_and_little_more():
    """50 models of a million float32 are 200 MB; a round takes less than a fifth besides."""
    task = ccfl.Task(
        init=lambda key: {"x": jnp.zeros(1_000_000)},
        loss=lambda params, batch, mask, key: (params["x"] ** 2).sum(),
        metrics=lambda params, batch, mask: {},
    )
    server = ccfl.cc_fedavg()
    data, _, _ = federated([1])
    state = jax.eval_shape(lambda: ccfl.init_state(task, server, jax.random.key(0), 50))
    assert sum(4 * leaf.size for leaf in jax.tree.leaves(state.history.models)) == 200_000_000
    row = ccfl.Schedule(*(np.zeros(1, np.int32) for _ in range(3)), np.ones(1, bool))
    round_fn = ccfl.build_round(task, server, lanes=1)
    memory = jax.jit(round_fn, donate_argnums=0).lower(state, row, data).compile().memory_analysis()
    new = memory.output_size_in_bytes - memory.alias_size_in_bytes
    assert memory.temp_size_in_bytes + new < 0.2 * 200_000_000


_ON_DEVICES = """
import jax
jax.config.update("jax_num_cpu_devices", 8)
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from problems import federated, make_schedule, mesh_of, softmax_task
import ccfl_jax as ccfl

task, server = softmax_task(), ccfl.cc_fedavg()
for devices in (1, 2, 4, 8):
    mesh = mesh_of(devices)
    data, state = jax.device_put(
        (federated([40])[0], ccfl.init_state(task, server, jax.random.key(0))),
        NamedSharding(mesh, PartitionSpec()),
    )
    print("first", *np.asarray(state.params["w"]).ravel().tolist())
    if devices in (1, 8):
        round_fn = ccfl.build_round(task, server, 0.5, 4, mesh=mesh)
        end, _ = ccfl.run_rounds(round_fn, state, make_schedule([[0]]), data)
        print("end", *np.asarray(end.params["w"]).ravel().tolist())
state = state._replace(key=jax.device_put(jax.random.key(5), state.key.sharding))
end, _ = ccfl.run_rounds(round_fn, state, make_schedule([[0]]), data)
print("other", *np.asarray(end.params["w"]).ravel().tolist())
"""


def test_md_04_initial_model_and_batch_order_do_not_hang_on_the_devices():
    """1, 2, 4 and 8 of them; ten steps at rate 0.5 in another order end elsewhere."""
    done = subprocess.run(
        [sys.executable, "-c", _ON_DEVICES],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    models = {"first": [], "end": [], "other": []}
    for line in done.stdout.splitlines():
        name, *numbers = line.split()
        models[name].append(np.array(numbers, float))
    assert len(models["first"]) == 4 and (np.ptp(models["first"], axis=0) == 0).all()
    one, eight = models["end"]
    np.testing.assert_allclose(eight, one, rtol=1e-6, atol=1e-6)
    assert abs(models["other"][0] - eight).max() > 1e-3


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_md_05_a_platform_that_is_not_there_is_an_error(tmp_path, platform):
    """Never the CPU instead."""
    if platform == "cuda" and Path("/dev/nvidia0").exists():
        pytest.skip("there is a GPU")
    done = command(tmp_path / "a", "--compilation_cache=off", JAX_PLATFORMS=platform)
    assert done.returncode == 2 and done.stdout == ""
    assert f"'{platform}'" in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "a").exists()
