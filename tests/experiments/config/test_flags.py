"""config/: every legal setting is taken as given, every other one ends in one line."""

import dataclasses
import inspect
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ccfl_jax as ccfl
from ccfl_jax.data import NUM_CLASSES
from experiments import train
from experiments.config import command, flag, flag_rules, run_flags
from experiments.config.run_flags import RUN, Config

ROOT = Path(__file__).parents[3]
_PRESETS = sorted((ROOT / "experiments/presets").glob("*.flags"))


def _parse(*args):
    return run_flags.parse(["train", *args])


def _message(*args):
    with pytest.raises(ValueError) as caught:
        _parse(*args)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults_are_the_papers():
    config = _parse("--server_lr=0.1")
    assert dataclasses.asdict(config) == {
        "dataset": "fashion_mnist",
        "data_dir": None,
        "model": "cnn",
        "num_clients": 100,
        "alpha": 0.5,
        "partition": "dirichlet",
        "max_examples": None,
        "min_examples": None,
        "max_words": None,
        "buffer_size": 5,
        "max_delay": 5,
        "local_epochs": 3,
        "local_steps": None,
        "randomness": 2.0,
        "local_lr": 0.01,
        "batch_size": 20,
        "normalise": "steps",
        "server": "cc_fedams",
        "server_lr": 0.1,
        "b1": 0.9,
        "b2": 0.99,
        "eps": 1e-3,
        "initial_accumulator": 0.0,
        "smoothness": None,
        "gradient_bound": None,
        "rounds": 500,
        "eval_every": 10,
        "seed": 0,
        "max_rejected": None,
        "checkpoint_every": None,
        "keep_checkpoints": 2,
        "out_dir": None,
        "resume": False,
        "overwrite": False,
        "compute_dtype": "float32",
        "lanes": None,
        "devices": None,
        "data_memory": None,
        "schedule_file": None,
        "progress": True,
        "compilation_cache": "~/.cache/ccfl_jax",
        "coordinator": None,
        "num_processes": None,
        "process_id": None,
    }


def test_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        _parse("--server_lr=0.1").seed = 1


def test_the_last_of_a_repeated_flag_wins(tmp_path):
    file = tmp_path / "a.flags"
    file.write_text("# a comment\n\n--seed=7\n--server_lr=0.1\n")
    assert _parse("--server_lr=1", "--server_lr=2").server_lr == 2.0
    assert _parse(f"--flagfile={file}").seed == 7
    assert _parse(f"--flagfile={file}", "--seed=8").seed == 8
    assert _parse("--seed=8", f"--flagfile={file}").seed == 7


@pytest.mark.parametrize(
    ("args", "field", "value"),
    [
        (["--noprogress"], "progress", False),
        (["--resume", "--out_dir=a"], "resume", True),
        (["--resume=false"], "resume", False),
        (["--seed=4294967295"], "seed", 2**32 - 1),
        (["--b1=0"], "b1", 0.0),
        (["--max_delay=0"], "max_delay", 0),
        (["--local_lr=0"], "local_lr", 0.0),
        (["--eps=0", "--initial_accumulator=1e-6"], "eps", 0.0),
        (["--num_clients=5"], "num_clients", 5),
        (["--lanes=3"], "lanes", 3),
        (["--compute_dtype=bfloat16"], "compute_dtype", "bfloat16"),
        (["--data_memory=0.5"], "data_memory", 0.5),
        (["--local_steps=10", "--randomness=0.1"], "local_steps", 10),
        (["--partition=dirichlet_client", "--alpha=0.1"], "alpha", 0.1),
        (["--data_dir=d"], "data_dir", "d"),
        (["--dataset=synthetic", "--model=logistic", "--partition=natural"], "alpha", None),
        (["--partition=iid"], "alpha", None),
        (["--local_steps=10"], "local_epochs", None),
        (["--server=cc_fedadagrad"], "b2", None),
        (["--server=cc_fedsgd"], "eps", None),
    ],
)
def test_legal_values(args, field, value):
    assert getattr(_parse("--server_lr=0.1", *args), field) == value


def test_cc_fedavg_has_server_lr_one():
    config = _parse("--server=cc_fedavg")
    assert config.server_lr == 1.0
    assert (config.b1, config.b2, config.eps, config.initial_accumulator) == (None,) * 4
    assert _parse("--server=cc_fedavg", "--server_lr=1").server_lr == 1.0


_COUNTS = ["num_clients", "buffer_size", "local_epochs", "local_steps", "batch_size", "rounds"]
_COUNTS += ["eval_every", "lanes", "devices", "max_examples", "min_examples", "max_words"]
_RATES = ["local_lr", "server_lr", "eps", "initial_accumulator"]
_ABOVE_0 = ["alpha", "randomness", "data_memory", "smoothness", "gradient_bound"]
_FLOATS = [*_ABOVE_0, "b1", "b2", *_RATES]


@pytest.mark.parametrize(
    ("name", "value", "found", "legal"),
    [(name, "0", "0", "from 1 to 2147483647") for name in _COUNTS]
    + [(name, "-1", "-1", "from 1 to 2147483647") for name in _COUNTS]
    + [(name, "2147483648", "2147483648", "from 1 to 2147483647") for name in _COUNTS]
    + [(name, "1.5", "'1.5'", "an integer") for name in _COUNTS]
    + [(name, "", "''", "an integer") for name in _COUNTS]
    + [(name, "nan", "nan", "a number") for name in _FLOATS]
    + [(name, "inf", "inf", "a number") for name in _FLOATS]
    + [(name, "-inf", "-inf", "a number") for name in _FLOATS]
    + [(name, "-0.1", "-0.1", "a number") for name in _FLOATS]
    + [(name, "1e39", "1e+39", "a number") for name in _FLOATS]
    + [(name, "abc", "'abc'", "a number") for name in _FLOATS]
    + [(name, "1", "1.0", "from 0 to less than 1") for name in ("b1", "b2")]
    + [(name, "0", "0.0", "a number > 0") for name in _ABOVE_0]
    + [
        ("max_delay", "-1", "-1", "from 0 to 2147483647"),
        ("seed", "-1", "-1", "from 0 to 4294967295"),
        ("seed", "4294967296", "4294967296", "from 0 to 4294967295"),
        ("seed", "None", "'None'", "from 0 to 4294967295"),
        ("server", "Adam ", "'Adam '", "cc_fedadam, cc_fedams; did you mean cc_fedadam?"),
        ("server", "cc_fedams ", "'cc_fedams '", "cc_fedams; did you mean cc_fedams?"),
        ("server", "yogi", "'yogi'", "cc_fedavg, cc_fedsgd, cc_fedavgm"),
        ("server", "fedadam2", "'fedadam2'", "did you mean cc_fedadam?"),
        ("dataset", "cifar", "'cifar'", "digits, fashion_mnist, synthetic"),
        ("model", "CNN", "'CNN'", "tags; did you mean cnn?"),
        ("partition", "dirichet", "'dirichet'", "did you mean dirichlet?"),
        ("normalise", "step", "'step'", "steps, epochs, none; did you mean steps?"),
        ("resume", "Flase", "'Flase'", "or with `no` before its name"),
        ("out_dir", "", "''", "a path"),
        ("schedule_file", " ", "' '", "a path"),
    ],
)
def test_value_outside_its_domain(name, value, found, legal):
    message = _message("--server_lr=0.1", f"--{name}={value}")
    assert message.startswith(f"--{name}: expected , found {found}")
    assert legal in message


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--buffer_size=6", "--num_clients=5"], ["--buffer_size", "6", "--num_clients, 5"]),
        (["--local_epochs=3", "--local_steps=9"], ["--local_steps", "9", "--local_epochs=3"]),
        (["--randomness=1.5"], ["--randomness", "1.5", "--local_epochs=3", "4.5"]),
        (["--randomness=0.1"], ["--randomness", "0.1", "--local_epochs=3", "0.3"]),
        (["--randomness=1e9"], ["--randomness", "3e+09", "2147483647"]),
        (["--alpha=0.5", "--partition=iid"], ["--alpha", "iid", "dirichlet_client"]),
        (["--partition=natural"], ["--partition", "natural", "fashion_mnist", "synthetic"]),
        (["--dataset=digits"], ["--model", "cnn", "digits", "mlp, logistic"]),
        (["--dataset=synthetic"], ["--model", "cnn", "synthetic", "mlp, logistic"]),
        (["--dataset=cifar10"], ["--model", "cnn", "cifar10", "resnet18, resnet20"]),
        (["--model=tags"], ["--model", "tags", "fashion_mnist", "mcmahan_cnn"]),
        (["--dataset=stackoverflow", "--model=tags"], ["--data_dir", "none", "Stack Overflow"]),
        (["--dataset=stackoverflow", "--model=tags", "--data_dir=a"], ["--partition", "natural"]),
        (["--max_words=9"], ["--max_words", "fashion_mnist", "stackoverflow"]),
        (["--min_examples=9"], ["--min_examples", "fashion_mnist", "stackoverflow"]),
        (["--dataset=digits", "--model=mlp", "--data_dir=a"], ["--data_dir", "digits"]),
        (["--server=cc_fedadagrad", "--b2=0.9"], ["--b2", "cc_fedadam, cc_fedams"]),
        (["--server=cc_fedavgm", "--eps=1"], ["--eps", "cc_fedadagrad, cc_fedadam, cc_fedams"]),
        (["--server=cc_fedsgd", "--b1=0.9"], ["--b1", "cc_fedsgd", "cc_fedavgm, cc_fedadagrad"]),
        (["--server=cc_fedsgd", "--initial_accumulator=0"], ["--initial_accumulator"]),
        (["--server=cc_fedavg"], ["--server_lr", "0.1", "cc_fedavg", "legal: 1"]),
        (["--eps=0"], ["--eps", "0", "--initial_accumulator=0"]),
        (["--resume"], ["--resume", "--out_dir"]),
        (["--resume", "False"], ["leftover word", "'False'", "--noresume"]),
        (["--out_dir=a", "b"], ["leftover word", "'b'"]),
        (["b" * 9000], ["leftover word: found 'bbb", "bbb, legal: only --flag=value"]),
        (["--" + "b" * 5998 + "=1"], ["--bbb", "bbb: found on the command line"]),
        (["-x"], ["-x: found on the command line"]),
        (["-"], ["leftover word", "'-'"]),
        (["--", "--seed=1"], ["leftover word", "'--seed=1'"]),
        (["--seeds=0,", "1"], ["--seeds", "did you mean --seed?"]),
        (["--sever_lr=1"], ["--sever_lr: found on", "did you mean --server_lr?"]),
        (["--undefok=x", "--x=1"], ["undefok"]),
        (["--noprogress=1"], ["--noprogress", "does not take an argument"]),
        (["--rounds"], ["--rounds: expected an integer, found no value"]),
        (["--flagfile=no/such.flags"], ["no/such.flags"]),
    ],
)
def test_flags_that_do_not_go_together(args, parts):
    message = _message("--server_lr=0.1", *args)
    assert all(part in message for part in parts), message


def test_server_lr_is_required():
    assert "--server_lr: found none" in _message("--server=cc_fedsgd")


@pytest.mark.parametrize("line", ["--sever_lr=1", "--undefok=a", "--b2=1", "resume", "--alpha 1"])
def test_a_flag_file_is_read_as_strictly(tmp_path, line):
    file = tmp_path / "a.flags"
    file.write_text(f"--server_lr=0.1\n{line}\n")
    assert line.strip("-").split("=")[0] in _message(f"--flagfile={file}")


@given(st.floats(min_value=0, max_value=3.4e38), st.integers(0, 2**32 - 1))
@settings(derandomize=True, max_examples=50, deadline=None)
def test_numbers_come_through_unchanged(server_lr, seed):
    config = _parse(f"--server_lr={server_lr!r}", f"--seed={seed}")
    assert (config.server_lr, config.seed) == (server_lr, seed)


@given(st.integers(1, 20), st.floats(0.01, 10))
@settings(derandomize=True, max_examples=50, deadline=None)
def test_local_work_is_taken_exactly_where_the_schedule_takes_it(local_epochs, randomness):
    args = ["--server_lr=1", f"--local_epochs={local_epochs}", f"--randomness={randomness!r}"]
    work = dict(local_work=local_epochs, randomness=randomness)
    try:
        ccfl.random_schedule(0, 1, 5, **work)
    except ValueError:
        assert "--randomness" in _message(*args)
    else:
        assert math.isclose(_parse(*args).randomness, randomness)


def test_servers_have_the_hyperparameters_of_the_library():
    for server, names in flag_rules.SERVERS.items():
        parameters = list(inspect.signature(getattr(ccfl, server)).parameters)
        assert parameters == ([] if server == "cc_fedavg" else ["learning_rate", *names])


def test_datasets_are_those_of_the_library():
    assert set(flag_rules.DATASETS) == set(NUM_CLASSES)


def test_help_names_every_field():
    text = command.help_of(train.__doc__, RUN)
    for field in dataclasses.fields(Config):
        assert f"--{field.name}" in text
    assert max(len(line) for line in text.splitlines()) <= 100


@pytest.mark.parametrize("preset", _PRESETS, ids=lambda path: path.stem)
def test_presets_parse(preset):
    assert len(_PRESETS) == 3 and preset.stem in flag.presets()
    config = _parse(f"--flagfile={preset}")
    assert config.server == "cc_fedams" and config == _parse(f"--preset={preset.stem}")
    # Another method needs no more than its own name and rate.
    assert _parse(f"--preset={preset.stem}", "--server=cc_fedsgd", "--server_lr=1").b2 is None


def test_an_unknown_preset_is_answered_with_the_nearest():
    message = _message("--preset=digit")
    assert message == (
        "--preset: expected digits, fmnist_cnn, synthetic, found 'digit'; did you mean digits?"
    )


# As a run or a sweep goes on these may differ: a run may become longer too, a trial may not.
_ALWAYS = {
    *("lanes", "devices", "data_memory", "progress", "resume", "overwrite", "out_dir"),
    *("compilation_cache", "coordinator", "num_processes", "process_id", "smoothness"),
    *("gradient_bound", "checkpoint_every", "keep_checkpoints"),
}


def test_what_may_change_as_a_run_or_a_sweep_goes_on():
    assert run_flags.free(a_run=False) == _ALWAYS
    assert run_flags.free(a_run=True) == _ALWAYS | {"rounds", "eval_every", "max_rejected"}


def test_what_a_sweep_may_vary_are_numbers_of_the_program_the_method_and_the_seed():
    assert {name for name, one in RUN.items() if one.varies} == {
        "local_lr", "seed", "server", "server_lr", *flag_rules.HYPERPARAMETERS
    }  # fmt: skip


@pytest.mark.parametrize("word", ["--helpfull", "--help=x", "-h", "--helpshort", "-help"])
def test_every_way_to_ask_for_help_gets_it(word, capsys):
    assert train.main(["train", "--seed=1", word]) == 0
    assert capsys.readouterr().out.strip() == command.help_of(train.__doc__, RUN)


@pytest.mark.parametrize("name", ["train", "sweep", "schedule", "reproduce", "plot", "bench"])
def test_help_may_be_cut_off_by_its_reader(name):
    """As by `| head -0`: the pipe is closed before anything is written."""
    reader, writer = os.pipe()
    os.close(reader)
    line = [sys.executable, "-m", f"experiments.{name}", "--help"]
    done = subprocess.run(line, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


_LIGHT = """
import sys
from experiments.train import main
code = main(sys.argv)
heavy = {"jax", "tensorflow_datasets", "matplotlib", "sklearn", "orbax"} & set(sys.modules)
assert not heavy, heavy
sys.exit(code)
"""


@pytest.mark.parametrize(("arg", "code"), [("--help", 0), ("--b2=1", 2), ("--resume False", 2)])
def test_help_and_complaints_load_nothing(tmp_path, arg, code):
    done = subprocess.run(
        [sys.executable, "-c", _LIGHT, *arg.split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if code == 0:
        assert done.stdout.strip() == command.help_of(train.__doc__, RUN)
    else:
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--overwrite"], "--overwrite: found no --out_dir"),
        (["--overwrite", "--resume", "--out_dir=a"], "--overwrite: found with --resume"),
        (["--coordinator=here"], "--coordinator: found 'here' with --num_processes=None"),
        (["--coordinator=here:1", "--num_processes=2"], "legal: auto, or HOST:PORT with both"),
        (
            ["--coordinator=here:1", "--num_processes=2", "--process_id=2"],
            "--process_id: expected 0 to 1, --num_processes, found 2",
        ),
        (["--num_processes=2"], "found 2, None with --coordinator=None"),
        (["--coordinator=auto", "--process_id=0"], "found None, 0 with --coordinator=auto"),
        (["--coordinator=auto"], "--coordinator: found no --out_dir"),
    ],
)
def test_processes_that_cannot_meet(args, message):
    with pytest.raises(ValueError) as error:
        _parse("--server_lr=0.1", *args)
    assert message in str(error.value)


def test_processes_that_can_meet():
    meeting = ["--coordinator=here:99", "--num_processes=2", "--process_id=1", "--out_dir=x"]
    config = _parse("--server_lr=0.1", *meeting)
    assert (config.coordinator, config.num_processes, config.process_id) == ("here:99", 2, 1)
