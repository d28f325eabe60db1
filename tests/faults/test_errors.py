"""What is said of bad input: one line that names the thing, what is expected and what was found."""

import ast
import importlib
import json
import re
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from problems import softmax_task
from refusal import refused

import ccfl_jax as ccfl
from ccfl_jax.data.readers import tfds
from ccfl_jax.models import Logistic
from ccfl_jax.runs import metrics, run_config
from experiments import __main__, train
from experiments.config import run_flags
from experiments.config.run_flags import RUN
from experiments.corpora import apt_lists
from experiments.training import method, parts

ROOT = Path(__file__).parents[2]
UNKNOWN = "expected a flag that --help names, found an unknown one"


def complaint(capsys, command, *args):
    """What a command says when it refuses: one line, and nothing was done."""
    module, *words = command.split()
    name = module.split(".")[-1]
    main = importlib.import_module(f"experiments.{module}").main
    assert main([name, *words, *map(str, args)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and said.err.startswith(f"{name}: ")
    return said.err.strip().removeprefix(f"{name}: ")


@pytest.mark.parametrize(
    ("command", "near"),
    [
        ("train --sever_lr=1", "server_lr"), ("sweep --vari=seed=0,1", "vary"),
        ("sweep --bach_size=1", "batch_size"), ("reproduce fig3_beta --sever_lr=1", "server_lr"),
        ("reproduce fig3_beta --sees=2", "seeds"), ("reproduce fig3_beta --noprogres", "progress"),
        ("bench --lane 3", "lanes"), ("plot runs/a --ot=a.png", "out"),
        ("report runs/a --oot=a.html", "out"),
        ("accelerator --minute=1", "minutes"), ("debian_corpus --outdir=a", "out_dir"),
        ("schedule --avalability=always", "availability"),
        ("schedule --bach_size=1", "batch_size"),
    ],
)  # fmt: skip
def test_a_misspelt_flag_is_answered_with_the_nearest(capsys, command, near):
    (misspelt,) = re.findall(r"--\w+", command)
    assert complaint(capsys, command) == f"{misspelt}: {UNKNOWN}; did you mean --{near}?"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("table --server=1", f"--server: {UNKNOWN}; did you mean --target?"),
        ("plot", "FOLDER: expected at least one, found none"),
        ("plot a -q", f"-q: {UNKNOWN}; did you mean --y?"),
        ("plot a --x=time", "--x: expected round, ..., found 'time'; did you mean virtual_time?"),
        ("plot a --out", "--out: expected files that end in .png, .pdf, .svg, ..., found no value"),
        ("plot a", "--out: expected a file for the figure, as curves.pdf, found none"),
        ("bench cnn", "leftover word: expected only --flag=value, found 'cnn'"),
        ("bench --seconds=nan", "--seconds: expected a number > 0, at most 3.4e38, found nan"),
        ("accelerator --seconds=soon", "--seconds: expected a number > 0, ..., found 'soon'"),
        ("debian_corpus --out_dir=a --fetch=a b", "--fetch: expected without FILE, found with 'b'"),
        ("benchmarks.peerbench --peers=none",
         "--peers: expected the workload's folder, found no common.py in none"),
        ("reproduce --rounds=2", "NAME: expected at least one, found none"),
        ("reproduce fig3_beta word", "NAME: expected one name, found 'fig3_beta word'"),
        ("train --dataset=stackoverflow --model=tags --server_lr=1",
         "--data_dir: expected the folder of the files of stackoverflow, found none"),
        ("train --dataset=digits --model=mlp --server_lr=1 --data_dir=a",
         "--data_dir: expected with fashion_mnist, cifar10, ..., found with --dataset=digits"),
        ("train --server_lr=1 --alpha=1 --partition=iid",
         "--alpha: expected with dirichlet, dirichlet_client, found with --partition=iid"),
    ],
)  # fmt: skip
def test_words_that_no_command_has_a_use_for(capsys, command, message):
    pattern = ".*".join(map(re.escape, message.split("...")))
    assert re.fullmatch(pattern, complaint(capsys, command))


def test_folders_without_a_run(capsys, tmp_path):
    config = {"server": "cc_fedavg", "server_lr": 1.0, "environment": {"devices": 1, "device": "a"}}
    (tmp_path / run_config.CONFIG).write_text(json.dumps(config))
    at = tmp_path / metrics.METRICS
    at.touch()
    assert (
        complaint(capsys, "plot --out=a.png", tmp_path)
        == f"{at}: expected at least one row, found none"
    )
    row = {"round": 0, "train_accuracy": None, "test_accuracy": 0.1, "seconds": 0.0, "samples": 0}
    at.write_text(json.dumps(row) + "\n")
    message = "expected rounds and seconds > 0 in the last row, found 0 and 0.0"
    assert complaint(capsys, "table", tmp_path) == f"{at}: {message}"


def test_lists_that_apt_does_not_bring(capsys, tmp_path, monkeypatch):
    args = ["debian_corpus --fetch=bookworm", f"--out_dir={tmp_path / 'out'}"]
    keyring = tmp_path / "keyring"
    monkeypatch.setattr(apt_lists, "_KEYRING", keyring)
    expected = f"--fetch: expected {keyring} (package debian-archive-keyring), found none"
    assert complaint(capsys, *args) == expected
    keyring.touch()
    done = SimpleNamespace(returncode=100, stderr="E: no\nnetwork\n")
    monkeypatch.setattr(apt_lists.subprocess, "run", lambda *_, **__: done)
    expected = "--fetch=bookworm: expected apt-get update to succeed, found E: no network"
    assert complaint(capsys, *args) == expected
    assert not (tmp_path / "out").exists()


def test_help_is_short_and_has_each_section_once(capsys):
    assert train.main(["train", "--help"]) == 0
    text = capsys.readouterr().out
    sections = [*dict.fromkeys(one.section for one in RUN.values())]
    assert re.findall(r"^([A-Z][a-z ]+):$", text, re.MULTILINE) == sections
    assert text.count("\n") <= 120


@pytest.mark.parametrize("name", __main__.commands())
def test_help_says_how_a_command_is_called(name, capsys):
    assert __main__.main(["ccfl", name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"\nusage: ccfl {name} " in text and "python -m" not in text


def evaluated(y, x=0.0):
    task = ccfl.classification_task(Logistic(3), (2,), 3)
    return ccfl.evaluate(task, {"w": np.zeros(3, "f")}, {"x": np.full((2, 2), x), "y": y})


def config(*args):
    return run_flags.parse(["x", "--dataset=digits", "--model=mlp", "--server_lr=1", *args])


def owners(*args):
    return parts.dealt(config("--partition=iid", *args), {"y": np.zeros(1437, np.int32)})


def first_state(*args):
    own, key = config(*args), jax.random.key(0)
    return parts.first_state(own, softmax_task(), own.max_delay + 1, method.numbers(own), key)


FLOATS = "array 'x': expected values of float32 (or jax_enable_x64), found"


def merged(*pairs):
    samples = [{"image": np.zeros(shape), "label": np.asarray(y)} for shape, y in pairs]
    return lambda: tfds._merge(iter(samples), ("image", "label"), "TFDS 'a'")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ccfl.load_dataset("stackoverflow"),
         "data_dir: expected the folder of the files of stackoverflow, found none"),
        (merged(), "TFDS 'a': expected samples in train and test, found a split without"),
        (merged(((2, 2), 0), ((2, 3), 1)), "TFDS 'a': expected inputs of one kind and scalar "
         "labels, found inputs float64 (2, 2) and float64 (2, 3), a label of shape ()"),
        (merged(((2,), -1)), "labels of TFDS 'a': expected 0 to 2147483647, found -1 to -1"),
        (merged(((2,), 0.5)),
         "labels of TFDS 'a': expected a 1-D integer array, found float64 (1,)"),
        (lambda: evaluated(np.zeros(2)), "y: expected integers [B], found float32 (2,)"),
        (lambda: evaluated(np.zeros((2, 1), int)), "y: expected integers [B], found int32 (2, 1)"),
        (lambda: evaluated(np.array([0, 2**32 + 1])),
         f"array 'y': expected values of int32 (or jax_enable_x64), found 0 to {2**32 + 1}"),
        (lambda: evaluated(np.zeros(2, int), -1e300), f"{FLOATS} -1e+300 to 0.0"),
        (lambda: ccfl.FederatedData.from_indices({"x": np.array([np.inf, 4e38])}, [[0]]),
         f"{FLOATS} 0.0 to 4e+38"),
        (lambda: ccfl.FederatedData.from_indices({"x": np.zeros(2, np.longdouble)}, [[0]]),
         "array 'x': expected bools or numbers of up to 64 bits, found dtype float128"),
        (lambda: ccfl.init_state(softmax_task(), ccfl.cc_fedavg(), jax.random.key(0), 2.5),
         "history_length: expected an integer >= 1, found 2.5"),
        (lambda: ccfl.random_schedule(0, 1, 2**31),
         f"num_clients: expected an integer from 1 to {2**31 - 1}, found {2**31}"),
        (lambda: ccfl.partition_natural(np.array([2**62])),
         f"client_ids: expected at least one, 0 to {2**31 - 1}, found {2**62} to {2**62}"),
        (lambda: ccfl.cc_fedams(0.1, eps=0.0, initial_accumulator=0.0),
         "eps: expected one of them at least 1.2e-38 ..., found 0 with initial_accumulator 0"),
        (lambda: owners("--local_epochs=900000", "--randomness=2", "--num_clients=1",
                        "--buffer_size=1"),
         f"--local_epochs: expected at most {(2**31 - 1) // 1437 // 2}, ..., found 900000 with "
         "--randomness=2 and 1437 samples each"),
        (lambda: owners("--local_steps=90000000", "--randomness=1.5"),
         f"--local_steps: expected at most {int((2**31 - 1) / 20 / 1.5)}, ..., found 90000000 with "
         "--randomness=1.5 and 20 samples each"),
        (lambda: first_state("--max_delay=2147483647"),
         "--max_delay: expected at most ... (models of 8.4e-05 MB ...), found 2147483647"),
    ],
)  # fmt: skip
def test_what_the_library_says(call, message):
    refused(message, call)


def template(node):
    """The text of a message, with {} for what is filled in."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)


def messages():
    """(file, template) of every error that is raised with a message of our own."""
    for path in [*(ROOT / "ccfl_jax").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            call = node.exc if isinstance(node, ast.Raise) else None
            kind = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
            if kind.endswith("Error") and kind != "UnpicklingError" and call.args:
                yield path.stem, template(call.args[0])


# These put a name, of a file and perhaps of a part of it, or of a flag, before what they raise.
READERS = {"arrow", "federated_sqlite", "files", "idx", "npz", "parsers", "sqlite", "stackoverflow"}
READERS |= {"python", "stackoverflow_words", "sweep_file", "tff"}
FROM_ELSEWHERE = {
    "{}": "a message that a function makes",
    "{}, of the trial {}": "the message about the settings of a trial",
    "{}: {}": "the reader's message behind the file's name",
    "client {}: {}": "the same behind the client's name",
    "--{}: {}": "the message of a function that a flag names",
    "--attack: {}": "the message of `systems.chosen`",
    "--dataset: {}, {} {}": "what is wrong with the rows of an array",
    "--data_{}": "the message of the argument that the flag is, with its name",
    "--{}": "the message of the argument that the flag is",
}


def test_every_message_says_what_is_expected_and_what_was_found():
    found = {*messages()}
    assert len(found) > 120 and FROM_ELSEWHERE.keys() <= {text for _, text in found}
    own = {(place, text) for place, text in found if text not in FROM_ELSEWHERE}
    named = {one for one in own if re.fullmatch(r"[^:]+: expected .+, found .+", one[1])}
    nameless = {one for one in own - named if re.fullmatch(r"expected .+, found .+", one[1])}
    assert own == named | nameless and {place for place, _ in nameless} == READERS
