"""experiments/reproduce.py: a short version of every figure and table, on made data."""

import csv
import json

import corpus
import numpy as np
import pytest
from data_files import write_cifar

from experiments import reproduce
from experiments.paper import presets
from experiments.sweeps import results

SHORT = ["--rounds=4", "--grid=coarse", "--seeds=1", "--eval_every=2", "--num_clients=6"]
SHORT += ["--local_epochs=1", "--devices=4", "--compilation_cache=off"]
# Those on files of their own data; the others learn digits, by the same few programs.
OWN_DATA = {
    "table3_cifar100": ["--model=logistic"],
    # One local rate, and trials of half as much work: it has 5 million parameters.
    "table3_stackoverflow": ["--local_lr=20", "--max_delay=1", "--rounds=2", "--eval_every=1"],
}
DIGITS = ["--dataset=digits", "--model=logistic", "--alpha=1", "--max_delay=2", "--randomness=1"]
FAST = "fig3_gamma"  # it varies a number, here two values of it for two methods
FEWER = {
    FAST: {"methods": ["cc_fedsgd", "cc_fedams"], "vary": {"b2": [0.5, 0.99]}},
    "table3_stackoverflow": {"methods": ["cc_fedsgd", "cc_fedadagrad", "cc_fedadam"]},
}
EVERY = [pytest.param(n, marks=pytest.mark.slow if n != FAST else []) for n in presets.names()]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with small files in their true form: noise, and texts whose words tell the tags."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    write_cifar(folder, "cifar100", 40)
    posts = [
        (split, f"c{k}", corpus.post(f"w{word}", f"w{word} w{word + 1}", f"t{word % 5}"))
        for split, clients in (("train", 8), ("test", 2))
        for k in range(clients)
        for word in rng.integers(0, 50, 20)
    ]
    words = {f"w{k}": 20_000 - k for k in range(10_000)}
    tags = {f"t{k}": 1000 - k for k in range(500)}
    corpus.write(folder, posts, words, tags, name="stackoverflow")
    return folder


@pytest.fixture(scope="module")
def run(request, tmp_path_factory):
    """`run(name, *more)`: its folder and what `main` returned, of the first time without more."""
    base, done, plain = tmp_path_factory.mktemp("out"), {}, presets.preset

    def preset(name, flags):
        return plain(name, flags)._replace(**FEWER.get(name, {}))

    def once(name, *more):
        if name in done and not more:
            return done[name]
        own = OWN_DATA.get(name)
        data = DIGITS if own is None else [*own, f"--data_dir={request.getfixturevalue('files')}"]
        args = [*SHORT, *data, f"--out_dir={base / name}", *more]
        found = base / name, reproduce.main(["reproduce", name, *args])
        done.setdefault(name, found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(presets, "preset", preset)
        yield once


def table(folder):
    """Its rows by stage."""
    with open(folder / results.RESULTS) as file:
        rows = list(csv.DictReader(file))
    assert {row["stage"] for row in rows} == {"grid", "final"}
    return [[row for row in rows if row["stage"] == stage] for stage in ("grid", "final")]


@pytest.mark.parametrize("name", EVERY)
def test_every_experiment_runs_to_its_verdict(run, name):
    folder, code = run(name)
    assert code in (0, 3)  # a rate may be too high for the made data
    summary = json.loads((folder / results.SUMMARY).read_text())
    preset = presets.preset(name, {"data_dir": "x", "local_lr": "1"})
    assert set(summary["choices"]) == set(preset.methods)
    assert len(summary["verdicts"]) == len(preset.claims)
    for verdict in summary["verdicts"]:
        assert verdict["margins"] and isinstance(verdict["holds"], bool)
    for ending in ("png", "svg"):
        assert (folder / f"{name}.{ending}").stat().st_size > 5000
    grid, final = table(folder)
    score = "recall_at_5" if name == "table3_stackoverflow" else "accuracy"
    finished = [row for row in grid + final if row["status"] == "finished"]
    assert finished and all(0 <= float(row[f"test_{score}"]) <= 1 for row in finished)
    tuned, plain = len({*preset.methods} - {"cc_fedavg"}), "cc_fedavg" in preset.methods
    assert len({row["trial"] for row in grid}) == 5 * tuned + plain
    # Every varied value, but for CC-FedSGD, which has none of the varied numbers.
    (values,) = preset.vary.values() or [None]
    settings = tuned + plain if values is None else 1 + len(values) * (tuned - 1)
    assert len({row["trial"] for row in final}) == settings


def test_the_chosen_setting_is_the_best_by_training(run):
    """Of four rounds the last fifth is the last one."""
    folder, _ = run(FAST)
    rows = [row for row in table(folder)[0] if (row["round"], row["status"]) == ("4", "finished")]
    summary = json.loads((folder / results.SUMMARY).read_text())
    for server, choice in summary["choices"].items():
        own = [row for row in rows if f"server={server}" in row["trial"].split()]
        last = {row["trial"]: float(row["train_accuracy"]) for row in own}
        assert last[choice["chosen"]] == max(last.values())
        assert choice["train"] == pytest.approx(max(last.values()), rel=1e-5)  # six digits


def test_what_the_grid_has_run_is_not_run_again(run):
    """The final trials at the varied number's default are the grid's, their seconds too."""
    trials = [run(FAST)[0] / stage / results.TRIALS for stage in ("grid", "final")]
    grid, final = ([json.loads(path.read_text()) for path in one.iterdir()] for one in trials)
    again = [a["rows"] == b["rows"] for a in grid for b in final if a["config"] == b["config"]]
    assert again == [True, True]  # methods


def test_the_same_command_again_trains_nothing(run, capsys):
    folder, code = run(FAST)
    capsys.readouterr()
    before = (folder / results.RESULTS).read_bytes()
    assert run(FAST, "--seeds=1") == (folder, code)
    assert "trial     " not in capsys.readouterr().out
    assert (folder / results.RESULTS).read_bytes() == before


def test_a_joint_grid_chooses_eps_beside_the_rate(run, tmp_path):
    run(FAST)  # kept before it is run with another grid
    run(FAST, "--grid=joint", f"--out_dir={tmp_path}")
    grid, final = table(tmp_path)
    assert len({row["trial"] for row in grid}) == 9 + 5 * 3
    summary = json.loads((tmp_path / results.SUMMARY).read_text())
    (eps,) = (word for word in summary["choices"]["cc_fedams"]["chosen"].split() if "eps=" in word)
    names = {row["trial"] for row in final}
    assert sum(eps in name.split() and "b2=" in name for name in names) == 2 == len(names) - 1


@pytest.mark.slow
def test_more_rounds_and_seeds_for_the_chosen_settings(run, tmp_path):
    more = ["--grid_rounds=2", "--seeds=2", "--rounds=3", "--normalise=epochs"]
    run(FAST)  # kept before it is run with more
    run(FAST, *more, f"--out_dir={tmp_path}")
    grid, final = table(tmp_path)
    assert [max(int(row["round"]) for row in stage) for stage in (grid, final)] == [2, 3]
    assert {row["trial"].split()[-1] for row in final} == {"seed=0", "seed=1"}
    config = next((tmp_path / "final" / results.TRIALS).iterdir()).read_text()
    assert json.loads(config)["config"]["normalise"] == "epochs"


def test_the_list_names_every_experiment(capsys):
    assert reproduce.main(["reproduce", "list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == presets.names()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("fig9", "NAME: expected list, all, fig1_alpha3, ..., found 'fig9'"),
        ("fig1_alpha3 --seeds=0", "--seeds: expected an integer from 1 to 1000, found 0"),
        ("fig1_alpha3 --seeds=1001", "--seeds: expected an integer from 1 to 1000, found 1001"),
        ("fig1_alpha3 --normalise=a", "--normalise: expected steps, epochs, none..., found 'a'"),
        ("fig1_alpha3 --model=cnn", "--model: expected resnet18, ..., found cnn with ...=cifar10"),
        ("fig1_alpha3 --grid=any", "--grid: expected coarse, paper, wide, joint, found 'any'"),
        (
            "fig1_alpha3 --grid=joint --eps=0.1",
            "--eps: expected another --grid than joint, which tries three, found 0.1",
        ),
        (
            "table3_stackoverflow",
            "--data_dir: expected the folder of the files of stackoverflow, ...",
        ),
        ("all", "--data_dir: expected the folder of the files of stackoverflow, ..."),
    ],
)
def test_a_wrong_command_is_refused_in_a_line(tmp_path, refuses, args, message):
    out = tmp_path / "out"
    refuses(message, reproduce.main, "reproduce", *args.split(), f"--out_dir={out}")
    assert not out.exists()
