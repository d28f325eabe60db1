"""Runs and sweeps of methods by name, from the command line."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from refusal import ended
from small_runs import SMALL

from experiments import sweep, train
from experiments.config.methods import METHODS, PERSONAL
from experiments.config.run_flags import parse
from experiments.training import method, parts

OWN = ("--local_lr=0.02", "--rounds=4", "--eval_every=2")


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.usefixtures("undrawn", "quickly_compiled")
@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains(name, tmp_path, capsys):
    rate = [] if "server_lr" in METHODS[name] else ["--server_lr=0.1"]
    rate += ["--client_test=0.2", "--model=mlp"] if name in PERSONAL else []
    words = [f"--method={name}", f"--out_dir={tmp_path / 'r'}", *rate]
    out = ended(0, capsys, train.main, "train", *SMALL, *OWN, *words).out
    assert f"method    {name}: " in out
    last = rows(tmp_path / "r")[-1]
    assert last["round"] == 4 and np.isfinite(last["test_loss"]) and not last["rejected"]


@pytest.mark.usefixtures("undrawn", "quickly_compiled")
@pytest.mark.parametrize(
    "words",
    [
        "--method=scaffold --upload=clip(1)+top_k(0.1,1)",
        "--method=fedbuff --attack=sign_flip(0.3,2) --local=adam(0.01)",
        "--method=afa_cd --server_lr=1 --attack=alie(0.2) --aggregate=trimmed_mean(0.2)",
        "--method=mifa --work=fixed",
        "--method=fedper --client_test=0.3 --model=mlp",
        "--method=ditto --client_test=0.3",
    ],
)
def test_a_run_of_pieces_resumes_bit_for_bit(words, tmp_path, capsys):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    own = [*SMALL, *OWN, *words.split()]
    if "--local=" in words:
        own.remove("--local_lr=0.02")
    ended(0, capsys, train.main, "train", *own, f"--out_dir={whole}")
    ended(0, capsys, train.main, "train", *own, "--rounds=2", f"--out_dir={cut}")
    ended(0, capsys, train.main, "train", *own, "--resume", f"--out_dir={cut}")
    clocks = {"seconds", "compile_seconds"}
    ends = [{n: v for n, v in rows(place)[-1].items() if n not in clocks} for place in (whole, cut)]
    assert ends[0] == ends[1] and ends[0]["round"] == 4
    assert ("clients_worst_accuracy" in ends[0]) == ("--client_test" in words)


@pytest.mark.usefixtures("quickly_compiled")
def test_a_trial_of_a_method_is_its_run_and_numbers_in_brackets_compile_nothing(tmp_path, capsys):
    """Two programs for four trials: FedProx at two pulls, SCAFFOLD for two seeds."""
    own = [*SMALL, *OWN, "--method=fedsam", f"--out_dir={tmp_path / 's'}"]
    vary = "--vary=rule=fedprox(0.1),fedprox(5),scaffold"
    out = ended(0, capsys, sweep.main, "sweep", *own, vary).out
    assert out.count("program   fedsam") == 2
    words = [*SMALL, *OWN, "--method=fedsam", "--rule=fedprox(5)", f"--out_dir={tmp_path / 'r'}"]
    ended(0, capsys, train.main, "train", *words)
    trial = json.loads((tmp_path / "s/trials/rule=fedprox(5).json").read_text())
    found = [row["test_loss"] for row in (trial["rows"][-1], rows(tmp_path / "r")[-1])]
    np.testing.assert_allclose(*found, rtol=1e-5)
    other = json.loads((tmp_path / "s/trials/rule=fedprox(0.1).json").read_text())
    assert abs(other["rows"][-1]["test_loss"] - found[0]) > 1e-4


@pytest.mark.parametrize("server", ["fedadam", "fedams"])
def test_a_server_that_has_seen_nothing_does_not_adapt(server):
    """Its accumulator is at the floor, eps**2 or eps, whatever rounding makes of the root."""
    for eps in (1e-2, 1e-3, 3e-4, 1e-5):
        config = parse(["train", *SMALL, f"--method={server}", "--server_lr=1", f"--eps={eps}"])
        numbers = method.numbers(config)
        state = method.server(config, numbers).init(jnp.zeros(33))
        assert float(parts.adaptive_share(state, method.floor(config, numbers))) == 0


@pytest.mark.usefixtures("undrawn", "quickly_compiled")
def test_a_run_whose_server_never_adapts_says_so(tmp_path, capsys):
    """Every root is far below eps 100: momentum at rate 3 / 100; FedAMS has it within the root."""
    for server, floor in (("fedams", 10), ("cc_fedams", 100)):
        words = [*SMALL, *OWN, f"--server={server}", "--server_lr=3", "--eps=100"]
        out = ended(0, capsys, train.main, "train", *words, f"--out_dir={tmp_path / server}").out
        assert f"MOMENTUM  {server} adapted at 0.000 of the coordinates at most" in out
        assert f"(a root above {floor}): it was momentum at rate server_lr / {floor} = " in out
        assert f" = {3 / floor:g};" in out
    words[-2:] = ["--server_lr=0.02", "--eps=1e-5"]
    out = ended(0, capsys, train.main, "train", *words, f"--out_dir={tmp_path / 'b'}").out
    assert "MOMENTUM" not in out


def test_a_bad_number_of_any_trial_is_refused_before_the_folder_is_made(tmp_path, refuses):
    """Numbers in brackets are traced in a sweep's program, which could not tell."""
    own = [*SMALL, *OWN, "--method=fedsam", f"--out_dir={tmp_path / 's'}"]
    message = "--rule: mu: expected a finite number >= 0, found -1.0, of the trial ..."
    refuses(message, sweep.main, "sweep", *own, "--vary=rule=fedprox(1),fedprox(-1)")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(("flag", "message"), [
    ("--local_lr=-1", "--local_lr: expected a number from 0 to 3.4e38, found -1.0"),
    ("--local_lr=nan", "--local_lr: expected a number from 0 to 3.4e38, found nan"),
    ("--local=adam(-1)", "--local: rate: expected a finite number >= 0, found -1.0"),
    ("--local=adam(nan)", "--local: expected ..., found 'adam(nan)'..."),
    ("--local=adamw(0.1,-1)", "--local: weight_decay: expected a finite number >= 0, found -1.0"),
    ("--local=sgd(-0.9)", "--local: momentum: expected a finite number >= 0 and < 1, found -0.9"),
    ("--upload=clip(0)", "--upload: norm: expected a finite number > 0, found 0.0"),
])  # fmt: skip
def test_a_rate_of_clients_is_finite_and_not_negative(tmp_path, refuses, flag, message):
    out = f"--out_dir={tmp_path / 'a'}"
    refuses(message, train.main, "train", *SMALL, "--server_lr=1", out, flag)
    assert not (tmp_path / "a").exists()
