"""training/parts.py, tasks.py: each model of a data set is a task for its samples."""

import jax
import numpy as np
import pytest
from small_runs import SMALL

import ccfl_jax as ccfl
from ccfl_jax.data import NUM_CLASSES
from ccfl_jax.data.synthetic import synthetic
from experiments import sweep, train
from experiments.config import datasets, run_flags
from experiments.training import method, parts, run_schedule, tasks

SHAPES = {
    "digits": ((8, 8, 1), np.float32),
    "fashion_mnist": ((28, 28, 1), np.uint8),
    "synthetic": ((60,), np.float32),
    "cifar10": ((32, 32, 3), np.uint8),
    "cifar100": ((32, 32, 3), np.uint8),
    "stackoverflow": ((40,), np.int32),
    "stackoverflow_nwp": ((20,), np.int32),
    "shakespeare": ((80,), np.int32),
    "fed_emnist": ((28, 28, 1), np.float32),
    "fed_emnist_digitsonly": ((28, 28, 1), np.float32),
    "fed_cifar100": ((32, 32, 3), np.uint8),
}
# Numbers of parameters that are known from elsewhere: McMahan et al., NIID-Bench, and by hand.
PARAMETERS = {
    ("fashion_mnist", "cnn"): 44_426,
    ("fashion_mnist", "mcmahan_cnn"): 1_663_370,
    ("fashion_mnist", "emnist_cnn"): 1_199_882,  # 320 + 18,496 + 1,179,776 + 1,290
    ("cifar10", "resnet20"): 269_722,
    ("cifar10", "resnet18"): 11_173_962,
    ("cifar100", "resnet18"): 11_173_962 + 90 * 513,  # 90 more classes on 512 features
    ("stackoverflow", "tags"): 10_000 * 500 + 500,
    ("stackoverflow_nwp", "word_lstm"): 4_050_748,  # Reddi et al., as the next two
    ("shakespeare", "char_lstm"): 820_522,
    ("fed_emnist", "autoencoder"): 2_837_314,
    ("digits", "logistic"): 64 * 10 + 10,
}
PAIRS = [(name, model) for name in SHAPES for model in datasets.DATASETS[name].models]
PAIRS = [pytest.param(*p, marks=pytest.mark.slow if "resnet" in p[1] else []) for p in PAIRS]


def task(dataset, model, rows=2):
    shape, dtype = SHAPES[dataset]
    x = np.full((rows, *shape), 255 if dtype == np.uint8 else 1, dtype)
    return tasks.task_of(dataset, model, "float32", {"x": x}, NUM_CLASSES[dataset]), x


@pytest.mark.parametrize(("dataset", "model"), PAIRS)
def test_every_pair_of_data_and_model_is_a_task(dataset, model):
    made, _ = task(dataset, model)
    params = jax.eval_shape(made.init, jax.random.key(0))
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert count == PARAMETERS.get((dataset, model), count)
    # Loss and metrics from one pass, but for dropout.
    assert (made.observe is not None) == (model != "emnist_cnn")


@pytest.mark.parametrize(
    ("dataset", "different"), [("cifar10", 4), ("fed_cifar100", 4), ("fashion_mnist", 1)]
)
def test_cifar_is_cropped_in_training_and_never_in_evaluation(dataset, different):
    """A shifted view of an image of ones has a black border, so its loss differs; evaluation, and
    training on Fashion-MNIST, see the image as it is whatever the key."""
    made, x = task(dataset, "logistic", rows=8)
    params = made.init(jax.random.key(0))
    batch, mask = {"x": x, "y": np.arange(8, dtype=np.int32)}, np.ones(8, bool)
    keys = jax.vmap(jax.random.key)(np.arange(4))
    losses = jax.jit(jax.vmap(made.loss, (None, None, None, 0)))(params, batch, mask, keys)
    total, count = made.metrics(params, batch, mask)["loss"]
    assert len({*losses.tolist()}) == different
    assert (losses[0].item() == pytest.approx(float(total / count), rel=1e-6)) == (different == 1)


def test_data_of_drawn_clients_depend_on_the_seed():
    texts = ["--dataset=stackoverflow", "--model=tags", "--partition=natural"]
    runs = [[*own, f"--seed={seed}"] for own in (texts, []) for seed in (0, 1)]
    base = ["x", "--server_lr=1", "--data_dir=d"]
    sources = {parts.source(run_flags.parse([*base, *own])) for own in runs}
    assert len(sources) == 3 and ("fashion_mnist", "d", None, None) in sources


@pytest.mark.parametrize("clients", [None, 7])
def test_held_out_samples_are_the_rest_and_no_client_is_emptied(clients):
    """A fifth of 50 samples, of whom client 6 has one alone; the same in every call."""
    train = {"x": np.arange(50.0), "y": np.arange(50) % 3}
    if clients:
        train["client"] = np.minimum(np.arange(50) // 8, clients - 1).astype(np.int32)
        train["client"][-2:] = 5, 6
    rest, held = parts.held_out(train, 0.2)
    assert len(held["x"]) == 10 and (np.sort([*rest["x"], *held["x"]]) == np.arange(50)).all()
    assert (rest["y"] == rest["x"] % 3).all() and set(held) == set(train)
    np.testing.assert_array_equal(parts.held_out(train, 0.2)[1]["x"], held["x"])
    if clients:
        every, _ = parts.held_out(train, 0.99)
        assert sorted(every["client"]) == [*range(clients)]
    assert parts.held_out(train, None) == (train, None)
    drawn = [parts.held_out(train, 0.2, seed)[1]["x"].tolist() for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2] and held["x"].tolist() not in drawn


@pytest.mark.parametrize("main", [train.main, sweep.main], ids=["train", "sweep"])
@pytest.mark.parametrize(("part", "name", "value", "message"), [
    (0, "x", np.nan, "training array 'x': expected finite numbers, found 2 rows with nan or inf"),
    (0, "y", 10, "training array 'y': expected labels from 0 to 9, found 2 rows with others"),
    (1, "y", -1, "test array 'y': expected labels from 0 to 9, found 2 rows with others"),
])  # fmt: skip
def test_samples_that_cannot_be_used_are_refused(
    tmp_path, monkeypatch, refuses, main, part, name, value, message
):
    load = ccfl.load_dataset

    def spoilt(*args):
        parts = load(*args)
        parts[part][name][[5, 8]] = value
        return parts

    monkeypatch.setattr(ccfl, "load_dataset", spoilt)
    argv = [
        main.__module__.split(".")[1],
        *SMALL,
        "--server_lr=1",
        "--rounds=1",
        f"--out_dir={tmp_path / 'a'}",
    ]
    argv += ["--compilation_cache=off", *(["--vary=seed=0,1"] if main is sweep.main else [])]
    refuses(f"--dataset: digits, {message}, the first is row 5", main, *argv)
    assert not (tmp_path / "a").exists()


def _draws(*args):
    """What is drawn of whom and when: clients' rows, schedule, first model, key, attackers."""
    words = ["--dataset=digits", "--model=mlp", "--server_lr=1", "--attack=sign_flip(0.2)"]
    own = run_flags.parse(["x", *words, "--num_clients=20", "--rounds=3", *args])
    numbers, (schedule, history) = method.numbers(own), run_schedule.schedule(own)
    keys = map(jax.random.key, (own.seed, own.seed_of("init")))
    train = {"x": np.zeros((200, 8, 8, 1), np.float32), "y": np.arange(200) % 10}
    task = tasks.task_of("digits", "mlp", "float32", train, 10)
    state = parts.first_state(own, task, history, numbers, *keys)
    rows, starts = parts.dealt(own, train)["train"]
    first = jax.tree.leaves(state.params)[-1]
    key = jax.random.key_data(state.key)
    found = {"data": (rows, starts), "schedule": (schedule.client,), "init": (first,)}
    found |= {"seed": (key, numbers["attackers"])}
    return {name: [np.asarray(a).tolist() for a in own] for name, own in found.items()}


@pytest.mark.parametrize("what", ["data", "schedule", "init"])
def test_a_seed_of_its_own_governs_what_its_name_says_alone(what):
    plain, moved = _draws(), _draws(f"--{what}_seed=1")
    assert {name for name in plain if plain[name] != moved[name]} == {what}
    held = _draws("--seed=1", f"--{what}_seed=0")
    assert {name for name in plain if plain[name] == held[name]} == {what}
    assert moved[what] == _draws("--seed=1")[what]  # unset it is --seed


def test_a_data_seed_that_is_given_draws_held_out_and_synthetic_samples():
    words = ["x", "--dataset=synthetic", "--model=logistic", "--server_lr=1", "--validation=0.1"]
    own = [["--seed=0"], ["--seed=1"], ["--data_seed=1"], ["--data_seed=1", "--seed=1"]]
    sources = [parts.source(run_flags.parse([*words, *seeds])) for seeds in own]
    assert sources[0] == sources[1] != sources[2] == sources[3]
    assert parts.source(run_flags.parse([*words[:4], "--data_seed=1"])) == (
        *("synthetic", None, None), 1)  # fmt: skip
    fixed, drawn = (parts.load(*sources[k]) for k in (0, 2))
    np.testing.assert_array_equal(drawn.test["x"], synthetic(seed=1)[1]["x"])
    assert fixed.test["x"].shape != drawn.test["x"].shape
