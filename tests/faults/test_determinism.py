"""The same command gives the same bytes, and no global generator is read or changed."""

import csv
import functools
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import data_files
import jax
import numpy as np
import pytest
from problems import federated, small_corpus, softmax_task

import ccfl_jax as ccfl
from ccfl_jax.data.synthetic import synthetic
from ccfl_jax.io import files
from experiments.benchmarks import workloads
from experiments.corpora import debian
from experiments.training import devices

ROOT = Path(__file__).parents[2]
RUN = [
    "--dataset=digits", "--model=logistic", "--num_clients=12", "--buffer_size=3", "--max_delay=2",
    "--local_epochs=1", "--rounds=4", "--eval_every=2", "--devices=1", "--compilation_cache=off",
]  # fmt: skip
COMMANDS = {  # own flags, exit code; half of the sweep diverges
    "train": (["--server_lr=0.1", "--noprogress"], 0),
    "sweep": (["--vary=server_lr=0.1,3e38"], 3),
}
CLOCKS = ("seconds", "compile_seconds", "date")


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """`twice(command)`: the folders of two processes of it, with other hash seeds.

    The second finds the first one's programs, if it asks for the same.
    """

    @functools.cache
    def folders(command):
        made, (own, code) = [], COMMANDS[command]
        line = [sys.executable, "-m", f"experiments.{command}", *RUN, *own, f"--out_dir={command}"]
        for seed in "12":
            made.append(tmp_path_factory.mktemp(f"{command}{seed}"))
            env = {"PYTHONHASHSEED": seed, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
            env = os.environ | {"PYTHONPATH": str(ROOT)} | env
            with (made[-1] / "out").open("w") as out:
                done = subprocess.run(line, cwd=made[-1], env=env, stdout=out)
            assert done.returncode == code
        return made

    return folders


def without_clocks(text):
    """JSON with the numbers of the time fields cut out of its text, nothing else touched."""
    return re.sub(rf'"({"|".join(CLOCKS)})": [^,}}]*', r'"\1": ', text)


def test_two_processes_write_the_same_run(twice):
    texts = [
        without_clocks((folder / "train/metrics.jsonl").read_text()) for folder in twice("train")
    ]
    assert texts[0] == texts[1] and texts[0].count("\n") == 3
    assert texts[0].count('"seconds": ,') == 3  # what was cut out is there
    folders = [folder / "train" for folder in twice("train")]
    configs = [without_clocks((folder / "config.json").read_text()) for folder in folders]
    schedules = [(folder / "schedule.npz").read_bytes() for folder in folders]
    assert configs[0] == configs[1] and schedules[0] == schedules[1]


def test_mc_10_the_header_says_what_the_history_costs(twice):
    """Three models of 64 * 10 + 10 numbers of four bytes."""
    megabytes = 3 * (64 * 10 + 10) * 4 / 1e6
    text = f"logistic: 650 parameters; history of 3 models, {megabytes:.2f} MB;"
    assert text in (twice("train")[0] / "out").read_text()


@pytest.mark.slow
def test_two_processes_write_the_same_sweep(twice):
    tables, (first, _) = [], twice("sweep")
    for folder in twice("sweep"):
        with open(folder / "sweep/results.csv", newline="") as file:
            tables.append([{**row, **dict.fromkeys(CLOCKS)} for row in csv.DictReader(file)])
    assert tables[0] == tables[1] and len({row["trial"] for row in tables[0]}) == 2
    names = [path.relative_to(first) for path in (first / "sweep").rglob("*.json")]
    for name in names:
        texts = [without_clocks((folder / name).read_text()) for folder in twice("sweep")]
        assert texts[0] == texts[1], name
    assert len(names) == 5  # two trials, the summary, the provenance and the flags


@pytest.mark.parametrize("command", ["train", pytest.param("sweep", marks=pytest.mark.slow)])
def test_files_are_strict_json_also_of_what_diverged(twice, command):
    for path in [
        path for path in twice(command)[0].rglob("*.json*") if "checkpoints" not in path.parts
    ]:
        data = path.read_bytes()
        parts = data.splitlines() if path.suffix == ".jsonl" else [data]
        values = [files.as_json(part, path) for part in parts]
        if "3e38" in path.name:
            assert values[0]["rows"][-1]["test_accuracy"] is None


LABELS, TASK, SERVER = np.arange(60) % 3, softmax_task(), ccfl.cc_fedams(0.1)
ROUND = ccfl.build_round(TASK, SERVER, 0.1, 2)


def lists(folder):
    """A corpus from lists as apt has them."""
    text = "".join(
        f"Package: p{k}\nMaintainer: m{k % 3}\nTag: a::b{k}\nDescription: A tool\n It is {k}.\n\n"
        for k in range(9)
    )
    (folder / "a_Packages").write_text(text)
    return debian.read_examples([folder / "a_Packages"])


def fashion(folder):
    data_files.write_fashion(folder)
    return ccfl.load_dataset("fashion_mnist", folder)


def small_run(folder):
    data, arrays, _ = federated([3, 5, 2, 4])
    start = ccfl.init_state(TASK, SERVER, jax.random.key(0), 3)
    schedule = ccfl.random_schedule(0, 4, 4, 2, max_delay=2)
    end, info = ccfl.run_rounds(ROUND, start, schedule, data)
    streamed = [piece.client for piece, _ in ccfl.stream_rounds(schedule, data, 10**5)]
    return end.params, info, ccfl.evaluate(TASK, end.params, arrays), streamed


CONSUMERS = {
    "digits": lambda folder: ccfl.load_dataset("digits"),
    "synthetic": lambda folder: synthetic(3),
    "fashion_mnist": fashion,
    "cifar10": lambda at: ccfl.load_dataset("cifar10", data_files.write_cifar(at, "cifar10", 1)),
    "corpus": small_corpus,
    "lists": lists,
    "iid": lambda folder: ccfl.partition_iid(LABELS, 4, 0),
    "dirichlet": lambda folder: ccfl.partition_dirichlet(LABELS, 4, 0.5, 0, min_size=9),
    "dirichlet_client": lambda folder: ccfl.partition_dirichlet(LABELS, 4, 0.5, 0, by="client"),
    "schedule": lambda folder: ccfl.random_schedule(0, 9, 20),
    "workload": lambda folder: workloads.logistic_many(2, 50, 5, 4, 30).data.arrays,
    "run": small_run,
}


@pytest.mark.parametrize("name", CONSUMERS)
def test_global_generators_are_neither_read_nor_changed(name, tmp_path):
    results = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        before = repr((random.getstate(), np.random.get_state()))  # noqa: NPY002
        folder = tmp_path / str(seed)
        folder.mkdir()
        results.append(jax.tree.leaves(CONSUMERS[name](folder)))
        assert repr((random.getstate(), np.random.get_state())) == before  # noqa: NPY002
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="compiled so on a CPU alone")
def test_what_is_compiled_quickly_has_the_same_numbers():
    """At XLA's level 0 one in 27 of these draws is another: products are not fused with sums."""

    def draw(key):
        return jax.random.truncated_normal(key, -2.0, 2.0, (300,))

    key = jax.random.key(5)
    np.testing.assert_array_equal(devices.compiled_quickly(draw)(key), jax.jit(draw)(key))
