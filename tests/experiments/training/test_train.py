"""experiments/train.py and training/: one command, its folder, its exit codes."""

import dataclasses
import json
import math
import os
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_runs import SMALL, config_of, line, restored, rows_of, six, without_clocks

import ccfl_jax as ccfl
from ccfl_jax.engine.streaming import cut
from ccfl_jax.runs import metrics, run_config, train_loop
from experiments import train
from experiments.config import methods
from experiments.training import data_memory, devices, intervals, method, run_setup
from experiments.training.parts import round_at  # itself, not what the tests of a file share


def test_folder_of_a_run(straight):
    folder, rows = straight
    names = ["checkpoints", "config.json", "curves.png", "metrics.jsonl"]
    names += ["params.npz", "provenance.json", "schedule.npz", "task.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    saved = json.loads((folder / run_config.CONFIG).read_text())
    asked = config_of("--rounds=6", "--eval_every=2", f"--out_dir={folder}")
    assert saved == dataclasses.asdict(asked) | {"environment": saved["environment"]}
    assert (folder / "curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert rows_of(folder) == rows
    assert ccfl.Schedule.load(folder / metrics.SCHEDULE).client.shape == (6, 3)


def test_rows_of_a_run(straight, ready):
    folder, rows = straight
    assert [row["round"] for row in rows] == [0, 2, 4, 6]
    assert rows[0]["compile_seconds"] > 0
    assert [row["compile_seconds"] for row in rows[1:]] == [None] * 3
    assert (rows[0]["train_loss"], rows[0]["train_accuracy"]) == (None, None)
    assert [row["participants"] for row in rows] == [None, 6, 6, 6]
    assert [row["client_updates"] for row in rows] == [0, 6, 12, 18]
    assert rows[0]["seconds"] == 0 < rows[1]["seconds"] < rows[2]["seconds"] < rows[3]["seconds"]
    assert not any(row["diverged"] for row in rows)
    assert rows[-1]["test_loss"] < rows[0]["test_loss"]
    # Work is counted in epochs: samples of a slot = work * the client's samples.
    schedule = ccfl.Schedule.load(folder / metrics.SCHEDULE)
    sizes = np.asarray(ready.problem.data.sizes)[schedule.client]
    samples = np.cumsum((schedule.work * sizes).sum(axis=1))
    assert [row["samples"] for row in rows] == [0, *samples[1::2].tolist()]
    slots = {"mean_steps": schedule.work * -(-sizes // 20), "mean_staleness": schedule.staleness}
    for name, values in slots.items():
        expected = values.reshape(3, 6).mean(axis=1)
        np.testing.assert_allclose([row[name] for row in rows[1:]], expected)


def test_test_metrics_are_those_of_the_final_model(straight, ready):
    folder, rows = straight
    params = restored(folder, ready.progress.states).params
    x, y = (np.asarray(ready.problem.scored[0][name]) for name in ("x", "y"))
    dense = jax.tree.map(np.float64, params["dense"])
    logits = x.reshape(len(x), -1) @ dense["kernel"] + dense["bias"]
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]
    assert len(y) == 360
    assert rows[-1]["test_accuracy"] == (logits.argmax(axis=1) == y).mean()
    assert math.isclose(rows[-1]["test_loss"], losses.mean(), rel_tol=1e-5)


def test_a_run_on_more_devices_is_the_same_run(straight, tmp_path):
    assert six(tmp_path / "spread", "--devices=2") == 0
    for one, two in zip(straight[1], rows_of(tmp_path / "spread"), strict=True):
        assert one["samples"] == two["samples"]
        assert one["test_loss"] == pytest.approx(two["test_loss"], rel=1e-5)


@pytest.mark.slow
def test_a_run_in_bfloat16_is_nearly_the_same_run(straight, tmp_path, capsys):
    assert six(tmp_path / "short", "--compute_dtype=bfloat16") == 0
    assert "computed in bfloat16" in capsys.readouterr().out
    both = rows_of(tmp_path / "short"), straight[1]
    short, long = ([row["test_loss"] for row in rows] for rows in both)
    assert short != long
    np.testing.assert_allclose(short, long, rtol=0.02)


def test_a_streamed_run_is_the_same_run(straight, ready, tmp_path, capsys):
    folder, memory = tmp_path / "streamed", 250_000
    assert six(folder, f"--data_memory={memory / 1e6}") == 0
    assert without_clocks(rows_of(folder)) == without_clocks(straight[1])
    pieces = cut(ccfl.Schedule.load(folder / metrics.SCHEDULE), ready.problem.data, memory)
    lengths = np.diff(pieces.starts)
    assert len(lengths) > 3 and 2 * pieces.nbytes <= memory
    said = f"{len(lengths)} pieces of {lengths.min()} to {lengths.max()} rounds, "
    said = f"streamed, {said}{pieces.nbytes / 1e6:.3g} MB each\n"
    assert f"data      digits: 1437 to train, 360 to test; {said}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flag", "platform", "limits", "expected"),
    [  # bytes of the devices; None: of one that does not tell
        ([], "cpu", [None], None),
        ([], "gpu", [80 * 10**9], None),
        ([], "gpu", [30 * 10**9], 15 * 10**9),
        ([], "gpu", [80 * 10**9, 9 * 10**9 + 7], 4500 * 10**6),
        ([], "tpu", [None], None),
        (["--data_memory=20000"], "gpu", [10**9], None),
        (["--data_memory=16000"], "cpu", [None], 16 * 10**9),
    ],
)
def test_data_are_streamed_where_half_the_memory_is_too_little(flag, platform, limits, expected):
    images = np.broadcast_to(np.float32(0), (20_000_000, 200))  # 16 GB that take 4 bytes
    data = ccfl.FederatedData({"x": images}, np.arange(10), np.array([0, 10]))
    stats = [limit and {"bytes_limit": limit} for limit in limits]
    local = [SimpleNamespace(platform=platform, memory_stats=lambda s=s: s) for s in stats]
    mesh = SimpleNamespace(devices=np.array(local), local_devices=local)
    assert data_memory.memory(config_of(*flag), data, mesh) == expected


def test_evaluations_and_long_stretches_cut_pieces(ready):
    """700 rounds, evaluated every 300, of data that are there: at most 250 at once."""
    schedule, data = ccfl.random_schedule(0, 700, 12, 3), ready.problem.data
    own = {
        "times": train_loop.Times(700, 300),
        "schedules": [schedule],
        "parts": lambda t: [([schedule.rounds(t, 700)], data)],
    }
    long = ready.program._replace(**own)
    for begun, lengths in ((0, [0, 250, 50, 250, 50, 100]), (290, [0, 10, 250, 50, 100])):
        pieces = [piece.client for (piece,), _ in train_loop._pieces(long, begun)]
        assert [len(piece) for piece in pieces] == lengths
        np.testing.assert_array_equal(np.concatenate(pieces), schedule.client[begun:])


_NATURAL = ["--dataset=synthetic", "--partition=natural"]
_FILES = ["--dataset=fashion_mnist", "--data_dir=no/such"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--num_clients=200"], "num_clients: expected at most 143, found 200 ...have 1437)"),
        (_NATURAL, "--num_clients: expected 100, the ..., found 12 with --partition=natural"),
        (["--devices=64"], "--devices: expected 1 to 4, the cpu devices here, found 64"),
        (["--data_memory=0.01"], "--data_memory: expected at least ..., found 10000 bytes"),
        (_FILES, "Fashion-MNIST: expected train-images-idx3-ubyte, ...idx1-ubyte"),
    ],
)
def test_data_that_do_not_fit(tmp_path, monkeypatch, refuses, args, message):
    monkeypatch.chdir(tmp_path)
    refuses(message, train.main, *line(*args))
    assert list(tmp_path.iterdir()) == []


def test_natural_clients_keep_their_own_samples(tmp_path):
    args = [*_NATURAL, "--num_clients=100", f"--out_dir={tmp_path / 'a'}"]
    data = run_setup.prepare(config_of(*args)).problem.data
    train_set, _ = ccfl.load_dataset("synthetic")
    np.testing.assert_array_equal(data.sizes, np.bincount(train_set["client"], minlength=100))
    np.testing.assert_array_equal(data.client(7)["x"], train_set["x"][train_set["client"] == 7])


def test_default_folders_are_numbered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [run_setup.prepare(config_of()).config.out_dir for _ in range(2)]
    assert folders == ["runs/digits-cc_fedams-001", "runs/digits-cc_fedams-002"]
    assert json.loads(Path(folders[1], run_config.CONFIG).read_text())["out_dir"] == folders[1]


def test_seed_and_what_it_does_not_touch(tmp_path):
    def prepared(name, *args):
        ready = run_setup.prepare(config_of(f"--out_dir={tmp_path / name}", *args))
        plan = [*jax.tree.leaves(ready.problem.schedule), ready.problem.data.indices]
        return [*plan, jax.tree.leaves(ready.progress.states.params)[-1]]

    def same(ours, theirs):
        return [np.array_equal(*pair) for pair in zip(ours, theirs, strict=True)]

    first = prepared("a")
    assert all(same(first, prepared("b", "--seed=0")))
    # Client, staleness, work, presence (every slot's), partition, model.
    assert same(first, prepared("c", "--seed=1")) == [False, False, False, True, False, False]
    # Cohorts, staleness and partition depend on the seed only.
    moved = prepared("d", "--local_epochs=2", "--server=cc_fedsgd", "--batch_size=7", "--model=mlp")
    assert same(first, moved) == [True, True, False, True, True, False]


def test_rates_are_no_part_of_the_program(ready):
    """So the compilation cache serves all of them."""

    row = jax.tree.map(lambda a: a[0], ready.problem.schedule.rounds(0, 1))
    call = jax.jit(lambda f, *rest: f(*rest))

    def program(*args):
        config = config_of(*args)
        plain = round_at(config, ready.problem.task, ready.problem.num_classes, None)
        round_fn = jax.tree_util.Partial(plain, method.numbers(config))
        return call.lower(round_fn, ready.progress.states, row, ready.problem.data).as_text()

    first = program("--server_lr=0.1", "--local_lr=0.01")
    own = ["--b1=0.5", "--b2=0.9", "--eps=0.01", "--initial_accumulator=0.1"]
    assert program("--server_lr=0.7", "--local_lr=0.03", *own) == first


@pytest.mark.parametrize("server", methods.SERVERS)
def test_every_server_gets_its_hyperparameters(server):
    gradient = {"x": np.array([0.5, -0.25], np.float32)}
    chosen = {"b1": 0.5, "b2": 0.7, "eps": 0.1, "initial_accumulator": 0.2}
    own = {name: chosen.get(name, 0.01) for name in methods.SERVERS[server]}
    function = getattr(ccfl, server, None) or getattr(ccfl.systems, server)
    rate = [] if server == "cc_fedavg" else [0.3]
    flags = [f"--{name}={value}" for name, value in own.items()]
    config = config_of(f"--server={server}", f"--server_lr={[*rate, 1.0][0]}", *flags)
    both = method.server(config, method.numbers(config)), function(*rate, **own)
    none, yes = jnp.zeros(1, jnp.int32), jnp.ones(1, bool)
    more = {"arrivals": ccfl.Arrivals(none, none, none, none, yes, jnp.int32(1))}
    both = map(optax.with_extra_args_support, both)
    ours, theirs = (t.update(gradient, t.init(gradient), gradient, **more)[0] for t in both)
    np.testing.assert_allclose(ours["x"], theirs["x"], rtol=1e-6)


@pytest.mark.parametrize(
    ("begun", "end", "every", "saved", "stops"),
    [
        (0, 6, 2, None, [2, 4, 6]),
        (0, 3, 10, None, [3]),
        (3, 6, 2, None, [4, 6]),
        (4, 6, 2, None, [6]),
        (4, 4, 2, None, [4]),
        (0, 7, 3, 2, [2, 3, 4, 6, 7]),
        (2, 7, 9, 3, [3, 6, 7]),
    ],
)
def test_evaluations_and_checkpoints_are_due(begun, end, every, saved, stops):
    own = [f"--checkpoint_every={saved}"] if saved else []
    config = config_of(f"--eval_every={every}", f"--rounds={end}", *own)
    times = intervals.times(config)
    assert times.stops(begun, end) == stops
    for done in stops:
        due = done % every == 0 or done == end
        assert times.is_evaluation(done) == due
        due = done % (saved or every) == 0 or done == end
        assert times.is_checkpoint(done) == due


@pytest.mark.parametrize("value", ["off", "here"])
def test_compiled_programs_are_kept_unless_off(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    updates = {}
    monkeypatch.setattr(jax.config, "update", updates.__setitem__)
    devices._keep_compiled(value)
    folder = updates.get("jax_compilation_cache_dir")
    assert (folder is None) == (value == "off")
    assert folder is None or Path(folder).parent == Path("here")


def test_the_command_says_that_a_huge_rate_blew_up(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    args = [*SMALL, "--rounds=2", "--server_lr=1e6", "--devices=1", "--compilation_cache=off"]
    assert train.main(["train", *args]) == 3
    said = capsys.readouterr()
    # No progress bar outside a terminal.
    assert [line.split(":")[0] for line in said.err.splitlines()] == [
        "round 0 of 2",
        "round 2 of 2",
    ]
    lines = said.out.splitlines()
    words = ["run", "data", "clients", "local", "method", "rounds", "model", "device", "result"]
    assert [line.split()[0] for line in lines] == [*words, "speed", "DIVERGED", "curves"]
    curves = tmp_path / lines[-1].split()[1]
    first, last = rows_of(curves.parent)
    assert curves.is_file() and (first["round"], last["round"]) == (0, 2)
    assert (first["diverged"], last["diverged"]) == (False, True)
    assert last["test_loss"] > 1000 * first["test_loss"]


@pytest.mark.parametrize(("plugins", "platforms", "vectors"), [
    ([], None, True),
    (["cuda"], None, False),
    (["cuda"], "cpu", True),
    (["cuda"], "cuda,cpu", False),
])  # fmt: skip
def test_xla_flags_are_set_once(monkeypatch, plugins, platforms, vectors):
    """Kept programs are found under the same flags only; what a user gave comes last and counts.

    What is for a CPU's vectors is for all of XLA, so a GPU's programs must not see it.
    """
    monkeypatch.setenv("XLA_FLAGS", "--xla_of_the_user=1")
    monkeypatch.setattr(devices, "entry_points", lambda group: plugins)
    config = SimpleNamespace(jax_platforms=platforms, jax_num_cpu_devices=2, update=lambda *_: None)
    monkeypatch.setattr(devices, "jax", SimpleNamespace(config=config))
    expected = [devices._ON_ONE_CORE, *[devices._VECTORS] * vectors, "--xla_of_the_user=1"]
    for _ in range(2):
        devices.make_host_devices(2)
        assert os.environ["XLA_FLAGS"].split() == expected
