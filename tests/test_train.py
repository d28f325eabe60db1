"""experiments/train.py and job.py: one command, its folder, its exit codes, and going on later."""

import dataclasses
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import ccfl_jax as ccfl
from ccfl_jax import checkpoints, config_file, record
from ccfl_jax.stream import cut
from experiments import build, cadence, devices, flags, job, loop, train

_BASE = [
    "--dataset=digits",
    "--model=logistic",
    "--num_clients=12",
    "--buffer_size=3",
    "--max_delay=2",
    "--local_epochs=1",
    "--server_lr=0.1",
    "--devices=1",
    "--compilation_cache=off",
    "--noprogress",
]
_CLOCKS = ("seconds", "compile_seconds")


def _config(*args):
    return flags.parse(["train", *_BASE, *args])


def _main(*args):
    return train.main(["train", *_BASE, *args])


def _rows(folder):
    def refuse(name):
        raise AssertionError(name)

    lines = (Path(folder) / record.METRICS).read_text().splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def _without_clocks(rows):
    return [{name: v for name, v in row.items() if name not in _CLOCKS} for row in rows]


def _restored(folder, like):
    kept = checkpoints.open_checkpoints(folder)
    saved, _ = checkpoints.restore(kept, like)
    checkpoints.close(kept)
    return saved.state


def _contents(folder):
    return {path: path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


def _copy(folder, target):
    shutil.copytree(folder, target)
    return target


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run of six rounds with an evaluation every second one, and what it printed."""
    folder = tmp_path_factory.mktemp("runs") / "straight"
    path, rows = train.run(_config("--rounds=6", "--eval_every=2", f"--out_dir={folder}"))
    assert path == folder
    return folder, rows


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    """The same run, prepared only."""
    return job.prepare(_config(f"--out_dir={tmp_path_factory.mktemp('runs') / 'ready'}"))


def test_folder_of_a_run(straight):
    folder, rows = straight
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoints",
        "config.json",
        "curves.png",
        "metrics.jsonl",
        "schedule.npz",
    ]
    saved = json.loads((folder / config_file.CONFIG).read_text())
    saved.pop("environment")
    assert saved == dataclasses.asdict(
        _config("--rounds=6", "--eval_every=2", f"--out_dir={folder}")
    )
    assert (folder / "curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert _rows(folder) == rows
    assert ccfl.Schedule.load(folder / record.SCHEDULE).client.shape == (6, 3)


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
    schedule = ccfl.Schedule.load(folder / record.SCHEDULE)
    sizes = np.asarray(ready.data.sizes)
    samples = np.cumsum((schedule.work * sizes[schedule.client]).sum(axis=1))
    assert [row["samples"] for row in rows] == [0, *samples[1::2].tolist()]
    steps = schedule.work * np.ceil(sizes[schedule.client] / 20)
    np.testing.assert_allclose(
        [row["mean_steps"] for row in rows[1:]], steps.reshape(3, 6).mean(axis=1)
    )
    np.testing.assert_allclose(
        [row["mean_staleness"] for row in rows[1:]],
        schedule.staleness.reshape(3, 6).mean(axis=1),
    )


def test_test_metrics_are_those_of_the_final_model(straight, ready):
    folder, rows = straight
    params = _restored(folder, ready.state).params
    x, y = (np.asarray(ready.test[name]) for name in ("x", "y"))
    dense = jax.tree.map(np.float64, params["dense"])
    logits = x.reshape(len(x), -1) @ dense["kernel"] + dense["bias"]
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]
    assert len(y) == 360
    assert rows[-1]["test_accuracy"] == (logits.argmax(axis=1) == y).mean()
    assert math.isclose(rows[-1]["test_loss"], losses.mean(), rel_tol=1e-5)


def test_a_run_that_was_killed_goes_on_bit_for_bit(straight, ready, tmp_path, capsys):
    # Stopped between the row of round 6 and its checkpoint: round 6 is run and written again. The
    # larger total, the other cadence and the lanes are free to change.
    folder = _copy(straight[0], tmp_path / "a")
    shutil.rmtree(folder / checkpoints.CHECKPOINTS / "6")
    args = ["--rounds=7", "--eval_every=3", "--lanes=3", "--resume"]
    assert _main(*args, f"--out_dir={folder}") == 0
    rows = _rows(folder)
    assert [row["round"] for row in rows] == [0, 2, 4, 6, 7]
    assert _without_clocks(rows[:4]) == _without_clocks(straight[1])
    assert rows[3]["seconds"] > rows[2]["seconds"] == straight[1][2]["seconds"]
    assert [row["compile_seconds"] is None for row in rows] == [False, True, True, False, True]
    assert json.loads((folder / config_file.CONFIG).read_text())["rounds"] == 7
    assert len(ccfl.Schedule.load(folder / record.SCHEDULE).client) == 7
    assert "after 7 rounds" in capsys.readouterr().out
    shutil.rmtree(folder / checkpoints.CHECKPOINTS / "7")
    resumed, whole = (_restored(path, ready.state) for path in (folder, straight[0]))
    assert int(resumed.round) == int(whole.round) == 6
    numbers = [jax.tree.leaves(state._replace(key=None)) for state in (resumed, whole)]
    for ours, theirs in zip(*numbers, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_run_on_more_devices_is_the_same_run(straight, tmp_path):
    folder = tmp_path / "spread"
    assert _main("--rounds=6", "--eval_every=2", "--devices=2", f"--out_dir={folder}") == 0
    for one, two in zip(straight[1], _rows(folder), strict=True):
        assert one["samples"] == two["samples"]
        assert one["test_loss"] == pytest.approx(two["test_loss"], rel=1e-5)


@pytest.mark.parametrize(("first", "then"), [(4, 1), (1, 4)])
def test_a_run_goes_on_on_other_devices(straight, tmp_path, first, then):
    """Between an evaluation and the next, with stale models: the same to 1e-6, but for the order
    of sums."""
    folder = tmp_path / "moved"
    args = ["--eval_every=2", "--checkpoint_every=3", f"--out_dir={folder}"]
    assert _main("--rounds=3", *args, f"--devices={first}") == 0
    assert _main("--rounds=6", *args, f"--devices={then}", "--resume") == 0
    moved = {row["round"]: row for row in _rows(folder)}
    assert list(moved) == [0, 2, 3, 4, 6]
    for row in straight[1]:
        assert moved[row["round"]]["test_loss"] == pytest.approx(row["test_loss"], abs=1e-6)


def test_a_run_in_bfloat16_is_nearly_the_same_run(straight, tmp_path, capsys):
    folder = tmp_path / "short"
    args = ["--rounds=6", "--eval_every=2", "--compute_dtype=bfloat16", f"--out_dir={folder}"]
    assert _main(*args) == 0
    assert "computed in bfloat16" in capsys.readouterr().out
    short, long = ([row["test_loss"] for row in rows] for rows in (_rows(folder), straight[1]))
    assert short != long
    np.testing.assert_allclose(short, long, rtol=0.02)


def test_a_streamed_run_is_the_same_run(straight, ready, tmp_path, capsys):
    folder, memory = tmp_path / "streamed", 250_000
    args = ["--rounds=6", "--eval_every=2", f"--out_dir={folder}"]
    assert _main(*args, "--data_memory=0.25") == 0
    assert _without_clocks(_rows(folder)) == _without_clocks(straight[1])
    pieces = cut(ccfl.Schedule.load(folder / record.SCHEDULE), ready.data, memory)
    lengths = np.diff(pieces.starts)
    assert len(lengths) > 3 and 2 * pieces.nbytes <= memory
    header = capsys.readouterr().out.splitlines()[1]
    assert header == (
        f"data      digits: 1437 to train, 360 to test; streamed, {len(lengths)} pieces of "
        f"{lengths.min()} to {lengths.max()} rounds, {pieces.nbytes / 1e6:.3g} MB each"
    )


def test_going_on_from_a_whole_run_to_a_streamed_one(straight, tmp_path, capsys):
    folder = _copy(straight[0], tmp_path / "a")
    shutil.rmtree(folder / checkpoints.CHECKPOINTS / "6")
    args = ["--rounds=6", "--eval_every=2", "--resume", f"--out_dir={folder}"]
    assert _main(*args, "--data_memory=0.25") == 0
    assert _without_clocks(_rows(folder)) == _without_clocks(straight[1])
    assert "pieces of 1 to 1 rounds" in capsys.readouterr().out  # of the two that were left


def test_a_round_that_memory_cannot_hold(tmp_path, capsys):
    folder = tmp_path / "a"
    assert _main(f"--out_dir={folder}", "--data_memory=0.01") == 2
    assert capsys.readouterr().err.startswith(
        "train: --data_memory: found 10000 bytes, legal: at least "
    )
    assert not folder.exists()


def _fake_mesh(platform, *stats):
    local = [SimpleNamespace(platform=platform, memory_stats=lambda s=s: s) for s in stats]
    return SimpleNamespace(devices=np.array(local), local_devices=local)


@pytest.mark.parametrize(
    ("flag", "mesh", "expected"),
    [
        ([], _fake_mesh("cpu", None), None),
        ([], _fake_mesh("gpu", {"bytes_limit": 80 * 10**9}), None),
        ([], _fake_mesh("gpu", {"bytes_limit": 30 * 10**9}), 15 * 10**9),
        ([], _fake_mesh("gpu", {"bytes_limit": 80 * 10**9}, {"bytes_limit": 9 * 10**9 + 7}),
         4500 * 10**6),
        ([], _fake_mesh("tpu", None), None),
        (["--data_memory=20000"], _fake_mesh("gpu", {"bytes_limit": 10**9}), None),
        (["--data_memory=16000"], _fake_mesh("cpu", None), 16 * 10**9),
    ],
)  # fmt: skip
def test_data_are_streamed_where_half_the_memory_is_too_little(flag, mesh, expected):
    images = np.broadcast_to(np.float32(0), (20_000_000, 200))  # 16 GB that take 4 bytes
    data = ccfl.FederatedData({"x": images}, np.arange(10), np.array([0, 10]))
    assert job._memory(_config(*flag), data, mesh) == expected


def test_evaluations_and_long_stretches_cut_pieces(ready):
    """700 rounds, evaluated every 300, on data that are there: at most 250 at once."""
    schedule = ccfl.random_schedule(0, 700, 12, 3)
    long = ready._replace(
        schedule=schedule, config=dataclasses.replace(ready.config, rounds=700, eval_every=300)
    )
    pieces = [piece.client for piece, _ in loop._pieces(long, 0)]
    assert [len(piece) for piece in pieces] == [0, 250, 50, 250, 50, 100]
    np.testing.assert_array_equal(np.concatenate(pieces), schedule.client)
    later = [piece.client for piece, _ in loop._pieces(long, 290)]
    assert [len(piece) for piece in later] == [0, 10, 250, 50, 100]
    np.testing.assert_array_equal(np.concatenate(later), schedule.client[290:])


def test_resuming_a_finished_run_changes_no_file(straight, tmp_path, capsys):
    folder = _copy(straight[0], tmp_path / "a")
    before = _contents(folder)
    assert _main("--rounds=6", "--eval_every=2", "--resume", f"--out_dir={folder}") == 0
    assert _contents(folder) == before
    accuracy = straight[1][-1]["test_accuracy"]
    assert f"test accuracy {accuracy:.4g} after 6 rounds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--alpha=0.3"], ["alpha 0.5 -> 0.3"]),
        (["--seed=1", "--num_clients=13"], ["num_clients 12 -> 13", "seed 0 -> 1"]),
        (["--server=cc_fedadam"], ["server 'cc_fedams' -> 'cc_fedadam'"]),
        (["--rounds=5"], ["--rounds: found 5, legal: at least 6"]),
    ],
)
def test_resume_under_another_configuration(straight, tmp_path, capsys, args, parts):
    folder = _copy(straight[0], tmp_path / "a")
    before = _contents(folder)
    assert _main("--rounds=9", "--resume", f"--out_dir={folder}", *args) == 2
    message = capsys.readouterr().err
    assert len(message.splitlines()) == 1
    assert all(part in message for part in parts), message
    assert _contents(folder) == before


def test_resume_on_another_schedule(straight, tmp_path, capsys):
    folder = _copy(straight[0], tmp_path / "a")
    schedule = ccfl.Schedule.load(folder / record.SCHEDULE)
    schedule.work[1, 1] += 1
    schedule.save(folder / record.SCHEDULE)
    assert _main("--rounds=9", "--resume", f"--out_dir={folder}") == 2
    assert "schedule.npz: found another schedule in the 6 rounds done" in capsys.readouterr().err


def test_resume_under_settings_that_were_edited_in_the_record(straight, tmp_path, capsys):
    """The checkpoint knows what it was made with, whatever config.json says since."""
    folder = _copy(straight[0], tmp_path / "a")
    config = folder / config_file.CONFIG
    config.write_text(config.read_text().replace('"local_lr": 0.01', '"local_lr": 0.02'))
    args = ["--rounds=9", "--local_lr=0.02", "--resume", f"--out_dir={folder}"]
    assert _main(*args) == 2
    error = capsys.readouterr().err
    assert "config.json: found other settings than the checkpoint of round 6 was made" in error
    assert not (folder / "lock").exists()


def test_going_on_past_a_damaged_checkpoint(straight, tmp_path, capsys):
    folder = _copy(straight[0], tmp_path / "a")
    (newest,) = (folder / checkpoints.CHECKPOINTS / "6").rglob("arrays.npz")
    newest.write_bytes(newest.read_bytes()[:20])
    assert _main("--rounds=6", "--eval_every=2", "--resume", f"--out_dir={folder}") == 0
    error = capsys.readouterr().err
    assert f"warning   {folder}: the checkpoint of round 6 is not whole (" in error
    assert _without_clocks(_rows(folder)) == _without_clocks(straight[1])


def test_going_on_before_the_first_checkpoint(straight, tmp_path, capsys):
    """Killed right after the folder was made, or after its first row: from the start."""
    folder = _copy(straight[0], tmp_path / "a")
    shutil.rmtree(folder / checkpoints.CHECKPOINTS)
    assert _main("--rounds=6", "--eval_every=2", "--resume", f"--out_dir={folder}") == 0
    assert f"warning   {folder}: no checkpoint yet, from the start" in capsys.readouterr().err
    assert _without_clocks(_rows(folder)) == _without_clocks(straight[1])


def test_overwriting_a_run(straight, tmp_path, capsys):
    folder = _copy(straight[0], tmp_path / "a")
    assert _main("--rounds=1", "--overwrite", f"--out_dir={folder}") == 0
    assert [row["round"] for row in _rows(folder)] == [0, 1]
    (folder / "notes.txt").write_text("mine")
    before = _contents(folder)
    assert _main("--rounds=2", "--overwrite", f"--out_dir={folder}") == 2
    assert f"{folder}: found notes.txt, legal: to overwrite a folder of" in capsys.readouterr().err
    assert _contents(folder) == before


def test_too_many_rejected_uploads_end_a_run(tmp_path, capsys):
    """At a local rate of 1e30 no upload is finite: three a round, the limit passed by round 4."""
    folder = tmp_path / "a"
    args = ["--model=mlp", "--local_lr=1e30", "--rounds=8", "--eval_every=2", "--max_rejected=7"]
    assert _main(*args, f"--out_dir={folder}") == 3
    rows = _rows(folder)
    assert [row["round"] for row in rows] == [0, 2, 4]
    assert [row["rejected"] for row in rows] == [None, 6, 6]
    assert [row["diverged_at"] for row in rows] == [None, None, 4]
    schedule = ccfl.Schedule.load(folder / record.SCHEDULE)
    names, counts = np.unique(schedule.client[2:4], return_counts=True)
    assert rows[2]["rejected_clients"] == dict(zip(map(str, names), map(int, counts), strict=True))
    assert "DIVERGED" in capsys.readouterr().out
    # With a higher limit it goes on.
    args[-1] = "--max_rejected=99"
    assert _main(*args, f"--out_dir={folder}", "--resume") == 0
    assert _rows(folder)[-1]["round"] == 8


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_resume_where_there_is_no_run(tmp_path, capsys, name):
    (tmp_path / "empty").mkdir()
    assert _main("--resume", f"--out_dir={tmp_path / name}") == 2
    assert capsys.readouterr().err == (
        f"train: {tmp_path / name}: found no config.json, legal: the folder of an earlier run\n"
    )
    assert not (tmp_path / "missing").exists()


def test_a_folder_in_use_is_refused(straight, capsys):
    before = _contents(straight[0])
    assert _main(f"--out_dir={straight[0]}") == 2
    assert f"{straight[0]}: found a folder with content" in capsys.readouterr().err
    assert _contents(straight[0]) == before


def test_divergence_ends_the_run_and_is_said(tmp_path, capsys):
    # Weights of 1e30 in two layers: their product is no float32.
    folder = tmp_path / "a"
    args = ["--model=mlp", "--server_lr=1e30", "--rounds=8", "--eval_every=2"]
    assert _main(*args, f"--out_dir={folder}") == 3
    assert "DIVERGED" in capsys.readouterr().out
    rows = _rows(folder)
    assert [row["diverged"] for row in rows] == [False] * (len(rows) - 1) + [True]
    assert rows[-1]["round"] < 8
    assert rows[-1]["test_loss"] is None
    assert (folder / "curves.png").exists()
    # Going on would only repeat it.
    before = _contents(folder)
    assert _main(*args, f"--out_dir={folder}", "--resume") == 3
    assert _contents(folder) == before


def test_schedule_file_replays_a_run(straight, tmp_path):
    file = straight[0] / record.SCHEDULE
    args = ["--rounds=4", "--seed=5", f"--schedule_file={file}", f"--out_dir={tmp_path / 'a'}"]
    replayed = job.prepare(_config(*args)).schedule
    for ours, theirs in zip(replayed[:4], ccfl.Schedule.load(file)[:4], strict=True):
        np.testing.assert_array_equal(ours, theirs[:4])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--rounds=7"], "--rounds: found 7, legal: 1 to 6, as in"),
        (["--buffer_size=4"], "--buffer_size: found 4, legal: 3, as in"),
        (["--max_delay=1"], "--max_delay: found 1, legal: at least 2, as in"),
        (["--randomness=1"], "--local_epochs * randomness: found 1, legal: at least 2, as in"),
        (["--num_clients=4"], "--num_clients: found 4, legal: 12, as in"),
    ],
)
def test_schedule_file_that_does_not_fit(tmp_path, capsys, args, message):
    schedule = ccfl.random_schedule(0, 6, 12, 3, 2, 1)
    schedule.client[0, 0], schedule.staleness[5, 0], schedule.work[0, 0] = 11, 2, 2
    schedule.save(tmp_path / "s.npz")
    assert _main("--rounds=6", f"--schedule_file={tmp_path / 's.npz'}", *args) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), (b"", "not a readable npz"), (b"PK\x03\x04", "not a readable npz")],
)
def test_schedule_file_that_is_none(tmp_path, capsys, content, message):
    file = tmp_path / "s.npz"
    if content is not None:
        file.write_bytes(content)
    assert _main(f"--schedule_file={file}") == 2
    error = capsys.readouterr().err
    assert message in error and "s.npz" in error and len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--num_clients=200"], ["2000", "1437"]),  # 200 clients of at least 10 samples
        (
            ["--dataset=synthetic", "--partition=natural"],
            ["--num_clients: found 12", "legal: 100, the clients of synthetic"],
        ),
        (["--devices=64"], ["--devices: found 64, legal: 1 to 4, the cpu devices here"]),
        (
            ["--dataset=fashion_mnist", "--data_dir=no/such/folder"],
            ["no/such/folder", "train-images-idx3-ubyte"],
        ),
    ],
)
def test_data_that_do_not_fit(tmp_path, monkeypatch, capsys, args, parts):
    monkeypatch.chdir(tmp_path)
    assert _main(*args) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert all(part in error for part in parts), error
    assert list(tmp_path.iterdir()) == []


def test_natural_clients_keep_their_own_samples(tmp_path):
    args = ["--dataset=synthetic", "--partition=natural", "--num_clients=100"]
    data = job.prepare(_config(*args, f"--out_dir={tmp_path / 'a'}")).data
    train_set, _ = ccfl.load_dataset("synthetic")
    np.testing.assert_array_equal(data.sizes, np.bincount(train_set["client"], minlength=100))
    np.testing.assert_array_equal(data.client(7)["x"], train_set["x"][train_set["client"] == 7])


def test_default_folders_are_numbered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [job.prepare(_config()).config.out_dir for _ in range(2)]
    assert folders == ["runs/digits-cc_fedams-001", "runs/digits-cc_fedams-002"]
    assert json.loads(Path(folders[1], config_file.CONFIG).read_text())["out_dir"] == folders[1]


def test_seed_and_what_it_does_not_touch(tmp_path):
    def prepared(name, *args):
        ready = job.prepare(_config(f"--out_dir={tmp_path / name}", *args))
        model = jax.tree.leaves(ready.state.params)
        return ready, [*ready.schedule[:4], ready.data.indices], model

    _, plan, model = prepared("a")
    _, same_plan, same_model = prepared("b", "--seed=0")
    for ours, theirs in zip(plan + model, same_plan + same_model, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    _, other_plan, other_model = prepared("c", "--seed=1")
    for k in (0, 1, 2, 4):  # client, staleness, work, partition; every slot is present
        assert not np.array_equal(plan[k], other_plan[k])
    assert not np.array_equal(model[-1], other_model[-1])
    # Cohorts, staleness and partition hang on the seed only.
    args = ["--model=mlp", "--local_epochs=2", "--server=cc_fedsgd", "--batch_size=7"]
    _, moved_plan, _ = prepared("d", *args)
    for k in (0, 1, 3, 4):
        np.testing.assert_array_equal(plan[k], moved_plan[k])


def test_rates_are_no_part_of_the_program(tmp_path):
    """So the compilation cache serves all of them; another batch size is another program."""

    def program(name, *args):
        ready = job.prepare(_config(f"--out_dir={tmp_path / name}", *args))
        ready.checkpoints.close()
        row = jax.tree.map(lambda a: a[0], ready.schedule.rounds(0, 1))
        return (
            jax.jit(lambda f, *rest: f(*rest))
            .lower(ready.round_fn, ready.state, row, ready.data)
            .as_text()
        )

    first = program("a", "--server_lr=0.1", "--local_lr=0.01")
    assert program("b", "--server_lr=0.7", "--local_lr=0.03") == first
    own = ["--b1=0.5", "--b2=0.9", "--eps=0.01", "--initial_accumulator=0.1"]
    assert program("c", *own) == first
    assert program("d", "--batch_size=7") != first


def test_every_server_gets_its_hyperparameters(tmp_path):
    gradient = {"x": np.array([0.5, -0.25], np.float32)}
    chosen = dict(b1=0.5, b2=0.7, eps=0.1, initial_accumulator=0.2)
    for server, names in flags.SERVERS.items():
        rate = 1.0 if server == "cc_fedavg" else 0.3
        args = [f"--{name}={chosen[name]}" for name in names]
        config = _config(f"--server={server}", f"--server_lr={rate}", *args)
        transform = build.server(config, build.rates(config))
        hyper = {name: chosen[name] for name in names}
        expected = getattr(ccfl, server)(*([] if server == "cc_fedavg" else [rate]), **hyper)
        ours, theirs = (
            t.update(gradient, t.init(gradient), gradient)[0] for t in (transform, expected)
        )
        np.testing.assert_allclose(ours["x"], theirs["x"], rtol=1e-6)


@pytest.mark.parametrize(
    ("begun", "end", "every", "saved", "stops"),
    [
        (0, 6, 2, None, [2, 4, 6]),
        (0, 5, 2, None, [2, 4, 5]),
        (0, 3, 10, None, [3]),
        (3, 6, 2, None, [4, 6]),
        (4, 6, 2, None, [6]),
        (4, 4, 2, None, [4]),
        (0, 7, 3, 2, [2, 3, 4, 6, 7]),
        (2, 7, 9, 3, [3, 6, 7]),
    ],
)
def test_evaluations_and_checkpoints_are_due(begun, end, every, saved, stops):
    cadences = [f"--eval_every={every}", f"--rounds={end or 1}"]
    config = _config(*cadences, *([f"--checkpoint_every={saved}"] if saved else []))
    assert cadence.stops(config, begun, end) == stops
    for done in stops:
        due = done % every == 0 or done == end
        assert cadence.is_evaluation(config, done) == due
        due = due if saved is None else done % saved == 0 or done == end
        assert cadence.is_checkpoint(config, done) == due


@pytest.mark.parametrize("value", ["off", "here"])
def test_compiled_programs_are_kept_unless_off(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    updates = {}
    monkeypatch.setattr(jax.config, "update", updates.__setitem__)
    devices._keep_compiled(value)
    folder = updates.get("jax_compilation_cache_dir")
    assert (folder is None) == (value == "off")
    assert folder is None or Path(folder).parent == Path("here")


def test_the_command_says_that_a_huge_rate_blew_up(tmp_path):
    root = Path(flags.__file__).parents[1]
    preset = root / "experiments" / "presets" / "digits.flags"
    args = [f"--flagfile={preset}", "--rounds=2", "--server_lr=1e6", "--compilation_cache=off"]
    done = subprocess.run(
        [sys.executable, "-m", "experiments.train", *args],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert (done.returncode, done.stderr) == (3, "")  # no progress bar outside a terminal
    lines = done.stdout.splitlines()
    words = ["run", "data", "clients", "local", "method", "rounds", "model", "device", "result"]
    assert [line.split()[0] for line in lines] == [*words, "speed", "DIVERGED", "curves"]
    curves = tmp_path / lines[-1].split()[1]
    assert curves.is_file()
    rows = _rows(curves.parent)
    assert [(row["round"], row["diverged"]) for row in rows] == [(0, False), (2, True)]
    assert rows[1]["test_loss"] > 1000 * rows[0]["test_loss"]


def test_xla_flags_are_set_once(monkeypatch):
    """Kept programs are found under the same flags only; what a user gave comes last and counts."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_of_the_user=1")
    for _ in range(2):
        devices.make_host_devices(jax.config.jax_num_cpu_devices)
        assert os.environ["XLA_FLAGS"] == f"{devices._ON_ONE_CORE} --xla_of_the_user=1"
