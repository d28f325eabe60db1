"""Attackers with other labels, from the command line: in a run, streamed, and in trials."""

import json
from functools import partial

import jax
import numpy as np
import pytest
from refusal import ended
from small_runs import SMALL, config_of, main, near, rows_of, without_clocks

import ccfl_jax as ccfl
from ccfl_jax import systems
from experiments import sweep
from experiments.training import run_setup

pytestmark = pytest.mark.usefixtures("undrawn", "quickly_compiled")
OWN = (
    "--method=mifa",
    "--local_lr=0.02",
    "--rounds=4",
    "--eval_every=2",
    "--attack=label_flip(0.3)",
)


def run(folder, *words):
    assert main(*OWN, f"--out_dir={folder}", *words) == 0
    return without_clocks(rows_of(folder))


def test_it_is_the_round_of_the_librarys_flipped_data(tmp_path):
    """Though the labels are exchanged within the program, where trials share the samples."""
    job = run_setup.prepare(config_of(*OWN, f"--out_dir={tmp_path / 'r'}"))
    (piece,), data = job.program.parts(0)[0]
    honest = run_setup.prepare(config_of(*OWN[:-1], f"--out_dir={tmp_path / 'h'}"))
    flipped = systems.label_flip(data, systems.chosen(12, 0.3, 0), 10)
    assert 0 < np.sum(flipped.arrays["y"] != data.arrays["y"]) < len(data.indices) / 2
    ends = [
        own.program.advance(own.progress.states, [piece], rows)
        for own, rows in ((job, data), (honest, flipped))
    ]
    for of in (lambda state, info: state.params, lambda state, info: info.train_loss):
        same = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
        jax.tree.map(same, *(jax.device_get(of(*end)) for end in ends))
    run_setup.close(job)
    run_setup.close(honest)


def test_trials_have_their_own_attackers_and_streaming_to_two_devices_is_the_same(tmp_path, capsys):
    words = [*SMALL, *OWN, "--server_lr=0.1", "--vary=seed=0,1", f"--out_dir={tmp_path / 's'}"]
    out = ended(0, capsys, sweep.main, "sweep", *words).out
    assert out.count("program   mifa") == 1
    trial = json.loads((tmp_path / "s/trials/seed=1.json").read_text())
    whole = run(tmp_path / "whole", "--seed=1")
    assert without_clocks(trial["rows"]) == near(whole, 1e-4)
    streamed = run(tmp_path / "streamed", "--seed=1", "--data_memory=0.6", "--devices=2")
    assert streamed == near(whole, 1e-4)
    kept = ccfl.Schedule.load(tmp_path / "streamed/schedule.npz")
    assert kept.num_rounds == 4 and "streamed, " in capsys.readouterr().out
