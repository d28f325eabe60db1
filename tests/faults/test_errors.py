"""What is said of bad input: one line that names the thing, what was found and what is legal."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import ccfl_jax as ccfl
from ccfl_jax.data.readers import tfds
from ccfl_jax.runs import metrics, run_config
from experiments import (
    accelerator,
    bench,
    debian_corpus,
    plot,
    reproduce,
    schedule,
    sweep,
    table,
    train,
)
from experiments.benchmarks import peerbench
from experiments.config.run_flags import RUN
from experiments.corpora import apt_lists

ROOT = Path(__file__).parents[2]
COMMANDS = {
    "train": train,
    "sweep": sweep,
    "reproduce": reproduce,
    "bench": bench,
    "plot": plot,
    "table": table,
    "accelerator": accelerator,
    "debian_corpus": debian_corpus,
    "schedule": schedule,
}


def complaint(capsys, name, *args):
    """What a command says when it refuses: one line, and nothing was done."""
    assert COMMANDS[name].main([name, *map(str, args)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and said.err.startswith(f"{name}: ")
    return said.err.strip().removeprefix(f"{name}: ")


@pytest.mark.parametrize(
    ("name", "args", "near"),
    [
        ("train", ["--sever_lr=1"], "server_lr"),
        ("train", ["--bach_size=1"], "batch_size"),
        ("sweep", ["--vari=seed=0,1"], "vary"),
        ("sweep", ["--bach_size=1"], "batch_size"),
        ("reproduce", ["fig3_beta", "--sever_lr=1"], "server_lr"),
        ("reproduce", ["fig3_beta", "--sees=2"], "seeds"),
        ("reproduce", ["fig3_beta", "--noprogres"], "progress"),
        ("bench", ["--bach_size=1"], "batch_size"),
        ("bench", ["--lane", "3"], "lanes"),
        ("plot", ["runs/a", "--ot=a.png"], "out"),
        ("plot", ["--ot=a.png"], "out"),
        ("accelerator", ["--minute=1"], "minutes"),
        ("debian_corpus", ["--outdir=a"], "out_dir"),
        ("schedule", ["--avalability=always"], "availability"),
        ("schedule", ["--bach_size=1"], "batch_size"),
    ],
)
def test_a_misspelt_flag_is_answered_with_the_nearest(capsys, name, args, near):
    text = complaint(capsys, name, *args)
    misspelt = next(word for word in args if word.startswith("--")).split("=")[0]
    assert text == (
        f"{misspelt}: found on the command line, legal: flags of --help; did you mean --{near}?"
    )


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("table", ["--server=1"], "--server: found on the command line, legal: flags of --help"),
        ("plot", [], "FOLDER: found none, legal: at least one"),
        ("plot", ["a", "-q"], "-q: found on the command line, legal: flags of --help"),
        ("plot", ["a", "--x=time"], "--x: found 'time', legal: round, client_updates, "),
        ("plot", ["a", "--out"], "--out: found no value, legal: a path"),
        ("bench", ["cnn"], "leftover word: found 'cnn'"),
        ("bench", ["--seconds=nan"], "--seconds: found nan, legal: a number > 0"),
        ("accelerator", ["--seconds=soon"], "--seconds: found 'soon', legal: a number > 0"),
        ("debian_corpus", ["--out_dir=a", "--fetch=a", "b"],
         "--fetch: found with 'b', legal: one of them"),
        ("reproduce", ["--rounds=2"], "NAME: found none, legal: at least one"),
        ("reproduce", ["fig3_beta", "word"], "NAME: found 'fig3_beta word', legal: one"),
        ("train", ["--dataset=stackoverflow", "--model=tags", "--server_lr=1"],
         "--data_dir: found none, legal: the folder of the Stack Overflow files"),
        ("train", ["--dataset=digits", "--model=mlp", "--server_lr=1", "--data_dir=a"],
         "--data_dir: found with --dataset=digits, legal: with fashion_mnist, cifar10, cifar100"),
        ("train", ["--server_lr=1", "--alpha=1", "--partition=iid"],
         "--alpha: found with --partition=iid, legal: with dirichlet, dirichlet_client"),
    ],
)  # fmt: skip
def test_words_that_no_command_has_a_use_for(capsys, name, args, message):
    assert complaint(capsys, name, *args).startswith(message)


def folder_of_a_run(folder, rows):
    environment = {"devices": 1, "device": "cpu"}
    config = {"server": "cc_fedavg", "server_lr": 1.0, "environment": environment}
    (folder / run_config.CONFIG).write_text(json.dumps(config))
    (folder / metrics.METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_folders_without_a_run(capsys, tmp_path):
    folder_of_a_run(tmp_path, [])
    at = tmp_path / metrics.METRICS
    assert complaint(capsys, "plot", tmp_path).startswith(f"{at}: found no row, legal: at least")
    row = {"round": 0, "train_accuracy": None, "test_accuracy": 0.1, "seconds": 0.0, "samples": 0}
    folder_of_a_run(tmp_path, [row])
    assert f"{at}: found a run of 0 rounds" in complaint(capsys, "table", tmp_path)


def test_lists_that_apt_does_not_bring(capsys, tmp_path, monkeypatch):
    args = ["debian_corpus", f"--out_dir={tmp_path / 'out'}", "--fetch=bookworm"]
    monkeypatch.setattr(apt_lists, "_KEYRING", tmp_path / "keyring")
    expected = f"--fetch: found no {tmp_path / 'keyring'}, legal: with it (debian-archive-keyring)"
    assert complaint(capsys, *args) == expected
    (tmp_path / "keyring").touch()
    done = SimpleNamespace(returncode=100, stderr="E: no\nnetwork\n")
    monkeypatch.setattr(apt_lists.subprocess, "run", lambda *_, **__: done)
    assert complaint(capsys, *args) == "--fetch=bookworm: apt-get update failed: E: no network"
    assert not (tmp_path / "out").exists()


def test_a_benchmark_without_its_peers(capsys, tmp_path):
    assert peerbench.main(["peerbench", f"--peers={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"peerbench: --peers: found no common.py in {tmp_path}, legal: the wo")


def samples(*pairs):
    return iter([{"image": np.zeros(shape), "label": np.asarray(y)} for shape, y in pairs])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ccfl.load_dataset("stackoverflow"),
         "data_dir: found none, legal: the folder of the Stack Overflow files"),
        (lambda: tfds._merge(samples(), ("image", "label"), "TFDS 'a' in /b"),
         "TFDS 'a' in /b: found no sample in a split, legal: some in train and test"),
        (lambda: tfds._merge(samples(((2, 2), 0), ((2, 3), 1)), ("image", "label"), "TFDS 'a'"),
         "TFDS 'a': found inputs float64 (2, 2) and float64 (2, 3), a label of shape (), legal: "),
        (lambda: tfds._merge(samples(((2,), -1)), ("image", "label"), "TFDS 'a'"),
         "labels of TFDS 'a': found -1 to -1, legal: 0 to 2147483647"),
        (lambda: tfds._merge(samples(((2,), 0.5)), ("image", "label"), "TFDS 'a'"),
         "labels of TFDS 'a': found float64 (1,), legal: a 1-D integer array"),
    ],
)  # fmt: skip
def test_what_the_library_says(call, message):
    with pytest.raises(ValueError) as refused:
        call()
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


def test_help_is_short_grouped_and_complete():
    done = subprocess.run(
        [sys.executable, "-m", "experiments.train", "--help"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) <= 100 and max(map(len, lines)) <= 100
    named = [re.match(r"  --(\w+)", line)[1] for line in lines if line.startswith("  --")]
    assert named == list(RUN)  # every one, once
    titles = [line[:-1] for line in lines if re.fullmatch(r"[A-Z][a-z ]+:", line)]
    assert titles == list(dict.fromkeys(one.group for one in RUN.values()))


def template(node):
    """The text of a message, with {} for what is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else "{}" for part in node.values
        )
    return str(node.value) if isinstance(node, ast.Constant) else "{}"


def messages():
    """(file.function, template) of every ValueError and IndexError that is raised."""
    for path in [*(ROOT / "ccfl_jax").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]:
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                call = node.exc if isinstance(node, ast.Raise) else None
                kind = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
                if kind in ("ValueError", "IndexError"):
                    yield f"{path.stem}.{function.name}", template(call.args[0])


# What is wrong inside a file: its reader puts the name of the file in front, and what would be
# legal is the format.
INSIDE_A_FILE = {
    *("idx._parse", "files._no_constant"),
    *("sqlite.open_database", "sqlite._check_tables", "npz._check_members"),
    *("stackoverflow.load_stackoverflow", "stackoverflow._draw_train", "vocabulary.read_tag_ids"),
    *("stackoverflow._clients", "stackoverflow._examples", "stackoverflow._text_and_tags"),
}
OTHERS = {
    "{}": "a message that a function makes",
    "{}: {}": "the reader's message behind the file's name",
    "client {}: {}": "the same behind the client's name",
    "--data_{}": "the message of the argument that the flag is, with its name",
    "{}: not readable as JSON ({})": "the parser's reason",
    "not a readable npz ({})": "the parser's reason",
}


def test_every_message_has_the_form_of_the_house():
    found = set(messages())
    assert len(found) > 120
    odd = {
        (place, text)
        for place, text in found
        if text not in OTHERS and not re.fullmatch(r"[^:]+: found .+, legal: .+", text, re.DOTALL)
    }
    assert {place for place, _ in odd} == INSIDE_A_FILE, odd  # and none that is there no more
    assert OTHERS.keys() <= {text for _, text in found}
    assert not any("\n" in text for _, text in found)
