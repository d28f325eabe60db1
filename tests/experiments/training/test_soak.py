"""A long run with everything on: nothing grows, and it ends where the NumPy twin ends.

`python -m pytest -m slow tests/experiments/training/test_soak.py -n 0 -s` prints the figures too.
"""

import collections
import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

import ccfl_jax as ccfl
from ccfl_jax.algorithm import minibatches
from ccfl_jax.runs import checkpoints, metrics
from experiments.config import run_flags
from experiments.training import run_setup

_ROOT = Path(__file__).parents[3]
_PRESET = f"--flagfile={_ROOT / 'experiments/presets/digits.flags'}"
_STEPS = 24  # 6 epochs of a client of at most 80 samples, 20 a batch
_LOCAL_LR, _SERVER_LR, _BATCH, _DELAY = 0.01, 0.02, 20, 5


def _schedule(rounds):
    """The preset's, with a fifth of the slots empty and in every hundredth round all of them."""
    drawn = ccfl.random_schedule(0, rounds, 30, 5, _DELAY)
    present = np.random.default_rng(1).random(drawn.present.shape) < 0.8
    present[::100] = False
    return drawn.replace(present=present)


def _watched(command):
    """Runs it; resident MB and open files, once a second while it trained."""
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    process = subprocess.Popen(
        command, cwd=_ROOT, env=environment | {"JAX_PLATFORMS": "cpu"}, stdout=subprocess.DEVNULL
    )
    seen = []
    while process.poll() is None:
        time.sleep(1)
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
            resident = int(status.split("VmRSS:")[1].split()[0]) / 1000
            seen.append((resident, len(os.listdir(f"/proc/{process.pid}/fd"))))
        except (FileNotFoundError, IndexError):
            break
    assert process.wait() == 0
    return np.array(seen)


def _visits(key, schedule, sizes, begin, end):
    """Row positions and masks `[rounds, slots, steps, B]` of the visits in some rounds."""

    def one(t, client, visit):
        own = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, t), client), visit)
        source = minibatches.shuffle_seeds(own)
        draw = lambda k: minibatches.epoch_batch(source, k, sizes[client], _BATCH)  # noqa: E731
        return jax.vmap(draw)(jnp.arange(_STEPS))

    clients = jnp.asarray(schedule.client[begin:end])  # distinct in a round: every visit is one's 0
    rounds = jnp.broadcast_to(jnp.arange(begin, end)[:, None], clients.shape)
    every = jax.jit(jax.vmap(jax.vmap(one)))(rounds, clients, jnp.zeros_like(clients))
    return jax.tree.map(np.asarray, every)


def _gradient(model, x, y):
    """Of the mean cross-entropy of one hidden layer with relu."""
    hidden = np.maximum(x @ model["w1"] + model["b1"], 0)
    logits = hidden @ model["w2"] + model["b2"]
    exp = np.exp(logits - logits.max(1, keepdims=True))
    out = exp / exp.sum(1, keepdims=True)
    out[np.arange(len(y)), y] -= 1
    out /= len(y)
    back = (out @ model["w2"].T) * (hidden > 0)
    return {"w1": x.T @ back, "b1": back.sum(0), "w2": hidden.T @ out, "b2": out.sum(0)}


def _named(params):
    names = {"w1": ("dense1", "kernel"), "b1": ("dense1", "bias")}
    names |= {"w2": ("dense2", "kernel"), "b2": ("dense2", "bias")}
    return {n: np.asarray(params[a][b], np.float64) for n, (a, b) in names.items()}


def _twin(ready, schedule):
    """Algorithm 2 in float64, with the models that staleness can still ask for."""
    arrays = {n: np.asarray(a) for n, a in ready.data.arrays.items()}
    x, y = arrays["x"].astype(np.float64).reshape(len(arrays["y"]), -1), arrays["y"]
    indices, offsets = (np.asarray(a) for a in (ready.data.indices, ready.data.offsets))
    sizes = np.diff(offsets)
    model = _named(ready.progress.states.params)
    past, state = collections.deque([model], _DELAY + 1), reference.server_init(model)
    for t, (clients, present) in enumerate(zip(schedule.client, schedule.present, strict=True)):
        if t % 1000 == 0:
            end = min(t + 1000, schedule.num_rounds)
            positions, masks = _visits(
                ready.progress.states.key, schedule, jnp.asarray(sizes), t, end
            )
        uploads = []
        for slot in np.flatnonzero(present):
            rows = indices[offsets[clients[slot]] : offsets[clients[slot] + 1]]
            steps = schedule.work[t, slot] * -(-len(rows) // _BATCH)
            drawn = zip(positions[t % 1000, slot], masks[t % 1000, slot], strict=True)
            lists = [rows[p[m]] for (p, m), _ in zip(drawn, range(steps), strict=False)]
            start = past[-1 - schedule.staleness[t, slot]]
            gradient = lambda model, rows: _gradient(model, x[rows], y[rows])  # noqa: E731
            uploads.append(reference.cc_local(start, lists, gradient, _LOCAL_LR, steps))
        if uploads:
            delta = {n: sum(u[n] for u in uploads) / len(uploads) for n in model}
            model = reference.server_step("ams", past[-1], state, delta, _SERVER_LR)
        past.append(model)
    return model


def _scores(model, test):
    x = np.asarray(test["x"], np.float64).reshape(len(test["y"]), -1)
    logits = np.maximum(x @ model["w1"] + model["b1"], 0) @ model["w2"] + model["b2"]
    shifted = logits - logits.max(1, keepdims=True)
    right = shifted[np.arange(len(x)), np.asarray(test["y"])]
    loss = (np.log(np.exp(shifted).sum(1)) - right).mean()
    return loss, (logits.argmax(1) == np.asarray(test["y"])).mean()


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [20_000])
def test_a_long_run_grows_nowhere_and_ends_as_the_twin(tmp_path, rounds):
    schedule, folder = _schedule(rounds), tmp_path / "run"
    schedule.save(tmp_path / "long.npz")
    args = [_PRESET, f"--rounds={rounds}", f"--schedule_file={tmp_path / 'long.npz'}"]
    args += ["--eval_every=10", "--checkpoint_every=50", "--devices=1", "--noprogress"]
    args += ["--compilation_cache=off"]
    seen = _watched([sys.executable, "-m", "experiments.train", *args, f"--out_dir={folder}"])
    trained = seen[len(seen) // 4 :]
    growth = np.polyfit(np.arange(len(trained)), trained[:, 0], 1)[0] * len(trained)
    print(
        f"\nresident {trained[0, 0]:.0f} to {trained[-1, 0]:.0f} MB, slope {growth:.1f} MB in all"
    )
    rows = metrics.read_rows(folder)
    assert [row["round"] for row in rows] == list(range(0, rounds + 1, 10))

    config = dataclasses.replace(
        run_flags.parse(["train", *args]), out_dir=str(tmp_path / "ready"), rounds=1
    )
    ready = run_setup.prepare(config)
    run_setup.close(ready)
    kept = checkpoints.open_checkpoints(folder)
    saved, broken = checkpoints.restore(kept, ready.progress.states)
    checkpoints.close(kept)
    assert int(saved.state.round) == rounds and broken == []
    ours, theirs = _named(saved.state.params), _twin(ready, schedule)
    apart = max(np.abs(ours[n] - theirs[n]).max() for n in ours)
    loss, accuracy = _scores(theirs, ready.test)
    print(f"parameters differ by {apart:.2g}; test loss {rows[-1]['test_loss']:.6f}, {loss:.6f}")
    assert rows[-1]["test_loss"] == pytest.approx(loss, abs=1e-4)
    assert rows[-1]["test_accuracy"] == pytest.approx(accuracy, abs=1e-4)
    assert apart < 0.01  # float32 against float64 through 160,000 steps
    assert growth < 0.02 * trained[0, 0]  # 2 % over 15,000 rounds
    quarter = len(trained) // 4  # a checkpoint being written has some files open for a moment
    assert np.median(trained[-quarter:, 1]) <= np.median(trained[:quarter, 1])
