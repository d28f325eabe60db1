"""experiments/reproduce.py: a short version of every figure and table, on made data."""

import csv
import json

import corpus
import numpy as np
import pytest
from data_files import CIFAR, FASHION, LABEL_BYTES, idx_bytes
from small_runs import assert_refused

from experiments import reproduce
from experiments.paper import presets
from experiments.sweeps import results

SHORT = ["--rounds=5", "--grid=coarse", "--seeds=1", "--eval_every=1", "--num_clients=6"]
SHORT += ["--local_epochs=1", "--devices=2", "--compilation_cache=off"]
# Models of 3,073 parameters for a label, but for the tags': one rate, fewer trials.
OWN = {
    "fig3_gamma": ["--grid_rounds=2", "--seeds=2", "--rounds=3", "--normalise=epochs"],
    "table3_stackoverflow": ["--local_lr=20", "--max_delay=1", "--model=tags"],
}
SEEDS = {"fig3_gamma": 2}
# One figure of curves and one of a varied number; the others take minutes.
FAST = ["fig2_fmnist", "fig3_gamma"]
EVERY = [
    pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in presets.names()
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with small files of each data set in its true form: the brighter, the higher."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)

    def images(count, pixels):
        labels = np.arange(count) % 10
        noise = rng.integers(0, 100, (count, pixels))
        return labels.astype(np.uint8), (noise + 15 * labels[:, None]).astype(np.uint8)

    for name, parts in CIFAR.items():
        for file in parts:
            y, x = images(200 if file == "train.bin" else 40, 3072)
            rows = np.concatenate([np.repeat(y[:, None], LABEL_BYTES[name], axis=1), x], axis=1)
            (folder / file).write_bytes(rows.tobytes())
    for name, (kind, _) in FASHION.items():
        y, x = images(200 if name.startswith("train") else 40, 784)
        content = y if kind == "y" else x.reshape(-1, 28, 28)
        (folder / name).write_bytes(idx_bytes(content))
    posts = [
        (split, f"c{k}", corpus.post(f"w{word}", f"w{word} w{word + 1}", f"t{word % 5}"))
        for split, clients in (("train", 8), ("test", 2))
        for k in range(clients)
        for word in rng.integers(0, 50, 20)
    ]
    words, tags = (
        {f"w{k}": 20_000 - k for k in range(10_000)},
        {f"t{k}": 1000 - k for k in range(500)},
    )
    corpus.write(folder, posts, words, tags, name="stackoverflow")
    return folder


@pytest.fixture(scope="module")
def run(files, tmp_path_factory):
    """`run(name)`: its folder and what `main` returned; it is run once, unless `again`."""
    base, done = tmp_path_factory.mktemp("out"), {}

    def once(name, again=False):
        if again or name not in done:
            args = [*SHORT, "--model=logistic", *OWN.get(name, []), f"--data_dir={files}"]
            code = reproduce.main(["reproduce", name, *args, f"--out_dir={base / name}"])
            done[name] = base / name, code
        return done[name]

    return once


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
    assert len({row["trial"] for row in final}) == settings * SEEDS.get(name, 1)


def test_the_chosen_setting_is_the_best_by_training(run):
    """Checked against the file of results, with plain loops."""
    folder, _ = run("fig2_fmnist")
    summary = json.loads((folder / results.SUMMARY).read_text())
    for server, choice in summary["choices"].items():
        last = {  # of five rounds the last fifth is the last one
            row["trial"]: float(row["train_accuracy"])
            for row in table(folder)[0]
            if f"server={server}" in row["trial"].split()
            and (row["round"], row["status"]) == ("5", "finished")
        }
        assert last[choice["chosen"]] == max(last.values())
        assert choice["train"] == pytest.approx(max(last.values()), rel=1e-5)  # six digits


def test_what_the_grid_has_run_is_not_run_again(run):
    """One seed and the same rounds: the final trial is the grid's, to the bit."""
    folder, _ = run("fig2_fmnist")
    for path in (folder / "final" / results.TRIALS).iterdir():
        one = json.loads(path.read_text())
        grid = folder / "grid" / results.TRIALS / path.name.replace(",seed=0", "")
        assert one["rows"] == json.loads(grid.read_text())["rows"]


def test_the_same_command_again_trains_nothing(run, capsys):
    folder, code = run("fig2_fmnist")
    capsys.readouterr()  # what the first command said, if it was this test that gave it
    before = (folder / results.RESULTS).read_bytes()
    assert run("fig2_fmnist", again=True) == (folder, code)
    assert "trial     " not in capsys.readouterr().out
    assert (folder / results.RESULTS).read_bytes() == before


def test_more_rounds_and_seeds_for_the_chosen_settings(run):
    folder, _ = run("fig3_gamma")
    grid, final = table(folder)
    assert [max(int(row["round"]) for row in stage) for stage in (grid, final)] == [2, 3]
    assert {row["trial"].split()[-1] for row in final} == {"seed=0", "seed=1"}
    config = next((folder / "final" / results.TRIALS).iterdir()).read_text()
    assert json.loads(config)["config"]["normalise"] == "epochs"


def test_the_list_names_every_experiment(capsys):
    assert reproduce.main(["reproduce", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == presets.names()


@pytest.mark.parametrize(
    ("args", "expected", "found"),
    [
        ([], "NAME: expected at least one", "none"),
        (["fig9"], "NAME: expected list, all, fig1_alpha3, ", "'fig9'"),
        (["fig1_alpha3", "rounds=3"], "NAME: expected one name", "'fig1_alpha3 rounds=3'"),
        (["fig1_alpha3", "--seeds=0"], "--seeds: expected an integer from 1 to 1000", "0"),
        (["fig1_alpha3", "--seeds=1001"], "--seeds: expected an integer from 1 to 1000", "1001"),
        (["fig1_alpha3", "--seeds=many"], "--seeds: expected an integer from 1 to 1000", "'many'"),
        (["fig1_alpha3", "--rounds=0"], "--rounds: expected an integer from 1 to ", "0"),
        (
            ["fig1_alpha3", "--normalise=work"],
            "--normalise: expected steps, epochs, none",
            "'work'",
        ),
        (["fig1_alpha3", "--model=cnn"], "--model: expected resnet", "cnn with --dataset=cifar10"),
        (
            ["fig1_alpha3", "--round=3"],
            "--round: expected a flag that --help names",
            "an unknown one; did you mean --rounds?",
        ),
        (
            ["fig1_alpha3", "--grid=fine"],
            "--grid: expected coarse, paper, wide",
            "'fine'; did you mean wide?",
        ),
        (["table3_stackoverflow"], "--data_dir: expected the folder of the Stack", "none"),
        (["all"], "--data_dir: expected the folder of the Stack", "none"),
    ],
)
def test_a_wrong_command_is_refused_in_a_line(tmp_path, capsys, args, expected, found):
    out = tmp_path / "out"
    assert reproduce.main(["reproduce", *args, f"--out_dir={out}"]) == 2
    assert_refused(capsys.readouterr().err, f"reproduce: {expected}", found)
    assert not out.exists()


def test_files_that_are_missing_are_named(tmp_path, capsys):
    out = tmp_path / "out"
    assert reproduce.main(["reproduce", "fig2_fmnist", "--data_dir=/no", f"--out_dir={out}"]) == 2
    error = capsys.readouterr().err
    assert "/no must hold train-images" in error and len(error.splitlines()) == 1
    assert not out.exists()
