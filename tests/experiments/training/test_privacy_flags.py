"""Private methods from the command line: what is clipped, and what the rows say of epsilon."""

import json
import shutil
import sys

import jax
import numpy as np
import optax
import pytest
from refusal import ended
from small_runs import BASE, SMALL, config_of, main, near, rows_of, without_clocks

import ccfl_jax as ccfl
from ccfl_jax import systems
from experiments import sweep, train
from experiments.training import run_setup

pytestmark = pytest.mark.usefixtures("undrawn", "quickly_compiled")
OWN = ("--method=dp_fedavg", "--local_lr=0.02", "--rounds=4", "--eval_every=2")


def run(folder, *words):
    assert main(*OWN, f"--out_dir={folder}", *words) == 0
    return without_clocks(rows_of(folder))


def test_no_round_moves_the_model_by_more_than_the_clip(tmp_path):
    words = "--privacy=dp_fedavg(0.001,0)", "--server_lr=1", f"--out_dir={tmp_path / 'r'}"
    job = run_setup.prepare(config_of(*OWN, *words))
    (piece,), data = job.program.parts(0)[0]
    before = jax.device_get(job.progress.states.params)
    state, _ = job.program.advance(job.progress.states, [piece.rounds(0, 1)], data)
    run_setup.close(job)
    moved = optax.tree.norm(jax.tree.map(np.subtract, jax.device_get(state.params), before))
    assert 0.0005 < moved <= 0.001 * (1 + 1e-5)


def test_without_noise_it_is_a_run_of_clipped_uploads(tmp_path):
    private = run(tmp_path / "a", "--privacy=dp_fedavg(0.05,0)", "--delta=0.01")
    words = ("--method=cc_fedsgd", "--normalise=none", "--upload=clip(0.05)")
    clipped = run(tmp_path / "b", *words)
    assert [row.pop("epsilon") for row in private] == [0, None, None]  # infinite
    assert private == near(clipped, 1e-4)


def test_trials_have_the_epsilon_of_their_own_noise_and_one_program(tmp_path, capsys):
    """Beside an adaptive server, whose state is found behind the noise's."""
    words = [*SMALL, *OWN, "--server=cc_fedams", "--server_lr=0.1", "--delta=1e-3"]
    vary = "--vary=privacy=dp_fedavg(0.05,0.5),dp_fedavg(0.05,2)"
    out = ended(0, capsys, sweep.main, "sweep", *words, vary, f"--out_dir={tmp_path}").out
    assert out.count("program   dp_fedavg") == 1
    schedule = ccfl.random_schedule(
        0, 4, 12, buffer_size=3, max_delay=2, local_work=1, randomness=2.0
    )
    losses = []
    for noise in (0.5, 2):
        trial = json.loads((tmp_path / f"trials/privacy=dp_fedavg(0.05,{noise}).json").read_text())
        found = {row["round"]: row["epsilon"] for row in trial["rows"]}
        assert found == {
            r: systems.epsilon_of_schedule(schedule.rounds(0, r), noise, 1e-3) for r in (0, 2, 4)
        }
        assert found[0] == 0 < found[2] <= found[4]
        assert 0 <= trial["rows"][-1]["adaptive_share"] <= 1
        losses.append(trial["rows"][-1]["test_loss"])
    assert abs(losses[0] - losses[1]) > 1e-4


@pytest.mark.parametrize(
    "words",
    [
        "--privacy=dp_fedavg(0.1,1) --rule=fedprox --upload=top_k(0.1,1) --attack=sign_flip(0.3)",
        "--privacy=dp_fedavg_adaptive(1) --local=sam",
        "--privacy=dp_ftrl(0.1,1) --attack=alie(0.2)",
    ],
)
def test_a_private_run_resumes_bit_for_bit(words, tmp_path, capsys):
    """From the checkpoint of round 2, as one is left that was killed."""
    own = [*words.split(), "--delta=1e-3"]
    whole = run(tmp_path / "r", *own)
    assert whole[0]["epsilon"] == 0 < whole[1]["epsilon"] <= whole[2]["epsilon"]
    shutil.rmtree(tmp_path / "r/checkpoints/4")
    assert run(tmp_path / "r", *own, "--resume") == whole
    assert "privacy   epsilon" in capsys.readouterr().out
    more = ["train", *BASE, *OWN, *own, f"--out_dir={tmp_path / 'r'}", "--resume", "--rounds=5"]
    if "dp_ftrl" in words:  # a tree of four rounds
        assert "rounds 4 -> 5" in ended(2, capsys, train.main, *more).err
    schedule = ccfl.Schedule.load(tmp_path / "r/schedule.npz")
    expected = systems.epsilon_of_schedule(schedule, 1, 1e-3, tree="dp_ftrl" in words)
    assert whole[2]["epsilon"] == expected


def test_without_a_delta_there_is_no_column_and_without_the_accountant_no_work(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert "epsilon" not in run(tmp_path / "a", "--rounds=2")[-1]
    words = [*SMALL, *OWN, "--delta=1e-3", f"--out_dir={tmp_path / 'b'}"]
    message = "dp_accounting: expected its package (pip install 'ccfl_jax[privacy]'), found"
    for name, command, more in (("train", train, []), ("sweep", sweep, ["--vary=seed=0,1"])):
        err = ended(2, capsys, command.main, name, *words, *more).err
        assert err.startswith(f"{name}: {message}") and err.count("\n") == 1
        assert not (tmp_path / "b").exists()
