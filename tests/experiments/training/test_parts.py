"""training/parts.py, tasks.py: each model of a data set is a task for its samples."""

import jax
import numpy as np
import pytest
from small_runs import SMALL

import ccfl_jax as ccfl
from ccfl_jax.data import NUM_CLASSES
from experiments import sweep, train
from experiments.config import flag_rules, run_flags
from experiments.training import parts, tasks

SHAPES = {
    "digits": ((8, 8, 1), np.float32),
    "fashion_mnist": ((28, 28, 1), np.uint8),
    "synthetic": ((60,), np.float32),
    "cifar10": ((32, 32, 3), np.uint8),
    "cifar100": ((32, 32, 3), np.uint8),
    "stackoverflow": ((40,), np.int32),
}
# Numbers of parameters that are known from elsewhere: McMahan et al., NIID-Bench, and by hand.
PARAMETERS = {
    ("fashion_mnist", "cnn"): 44_426,
    ("fashion_mnist", "mcmahan_cnn"): 1_663_370,
    ("cifar10", "resnet20"): 269_722,
    ("cifar10", "resnet18"): 11_173_962,
    ("cifar100", "resnet18"): 11_173_962 + 90 * 513,  # 90 more classes on 512 features
    ("stackoverflow", "tags"): 10_000 * 500 + 500,
    ("digits", "logistic"): 64 * 10 + 10,
}
PAIRS = [(name, m) for name in NUM_CLASSES for m in flag_rules.DATASETS[name].models]
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
    assert made.observe is not None  # loss and metrics from one pass


@pytest.mark.parametrize(("dataset", "different"), [("cifar10", 4), ("fashion_mnist", 1)])
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
    assert len(sources) == 3 and ("fashion_mnist", "d", None) in sources


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
