"""config/: every legal setting is taken as given, every other one ends in one line."""

import dataclasses
import inspect
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusal import refused

import ccfl_jax as ccfl
from ccfl_jax.data import NUM_CLASSES
from experiments.config import datasets, flag, methods, run_flags, settings
from experiments.config.run_flags import RUN

ROOT = Path(__file__).parents[3]
_PRESETS = sorted((ROOT / "experiments/presets").glob("*.flags"))


def _parse(*args):
    return run_flags.parse(["train", *args])


def test_defaults_are_the_papers():
    config = dataclasses.asdict(_parse("--server_lr=0.1"))
    assert {name: value for name, value in config.items() if value is not None} == {
        **{"dataset": "fashion_mnist", "model": "cnn", "num_clients": 100, "batch_size": 20},
        **{"partition": "dirichlet", "alpha": 0.5, "rounds": 500, "buffer_size": 5, "seed": 0},
        **{"max_delay": 5, "local_epochs": 3, "randomness": 2.0, "local_lr": 0.01, "eps": 1e-3},
        **{"normalise": "steps", "compute_dtype": "float32", "initial_accumulator": 0.0},
        **{"server": "cc_fedams", "server_lr": 0.1, "b1": 0.9, "b2": 0.99, "eval_every": 10},
        **{"keep_checkpoints": 2, "resume": False, "overwrite": False, "progress": True},
        **{"tensorboard": False},
        **{"compilation_cache": "~/.cache/ccfl_jax", "accept_changed": ""},
    }
    with pytest.raises(dataclasses.FrozenInstanceError):
        _parse("--server_lr=0.1").seed = 1


def test_the_last_of_a_repeated_flag_wins(tmp_path):
    file = tmp_path / "a.flags"
    file.write_text("# a comment\n\n--seed=7\n--server_lr=0.1\n")
    assert _parse("--server_lr=1", "--server_lr=2").server_lr == 2.0
    assert _parse(f"--flagfile={file}").seed == 7
    assert _parse(f"--flagfile={file}", "--seed=8").seed == 8
    assert _parse("--seed=8", f"--flagfile={file}").seed == 7


@pytest.mark.parametrize(("words", "fields"), [
    ("--noprogress --resume=false --data_dir=d", {"progress": False, "resume": False}),
    ("--b1=0 --max_delay=0 --local_lr=0", {"b1": 0.0, "max_delay": 0, "local_lr": 0.0}),
    ("--eps=0 --initial_accumulator=1e-6", {"eps": 0.0, "initial_accumulator": 1e-6}),
    ("--seed=4294967295 --num_clients=5", {"seed": 2**32 - 1, "num_clients": 5}),
    ("--resume --out_dir=a", {"resume": True, "out_dir": "a"}),
    ("--local_steps=10 --randomness=0.1", {"local_steps": 10, "local_epochs": None}),
    ("--partition=dirichlet_client --alpha=0.1", {"alpha": 0.1}),
    ("--dataset=synthetic --model=logistic --partition=natural", {"alpha": None}),
    ("--partition=iid --server=cc_fedsgd", {"alpha": None, "b1": None, "eps": None}),
    ("--server=cc_fedadagrad", {"b1": 0.9, "b2": None}),
    ("--coordinator=here:99 --num_processes=2 --process_id=1 --out_dir=x", {"process_id": 1}),
])  # fmt: skip
def test_legal_values(words, fields):
    config = _parse("--server_lr=0.1", *words.split())
    assert {name: getattr(config, name) for name in fields} == fields


def test_cc_fedavg_has_server_lr_one():
    config = _parse("--server=cc_fedavg")
    assert config == _parse("--server=cc_fedavg", "--server_lr=1") and config.server_lr == 1.0
    assert (config.b1, config.b2, config.eps, config.initial_accumulator) == (None,) * 4
    message = "--server_lr: expected a number >= 0 (cc_fedavg alone needs none), found none"
    refused(message, _parse, "--server=cc_fedsgd")


_COUNTS = ["num_clients", "buffer_size", "local_epochs", "local_steps", "batch_size", "rounds"]
_COUNTS += ["eval_every", "lanes", "devices", "max_examples", "min_examples", "max_words"]
_RATES = ["local_lr", "server_lr", "eps", "initial_accumulator"]
_ABOVE_0 = ["alpha", "randomness", "data_memory", "smoothness", "gradient_bound"]
_FLOATS = [*_ABOVE_0, "b1", "b2", *_RATES]
_COUNT, _SEED = "an integer from 1 to 2147483647", "an integer from 0 to 4294967295"
_SERVERS = ", ".join(methods.SERVERS)


@pytest.mark.parametrize(("name", "value", "expected", "found"), [
    *((name, value, _COUNT, value) for name in _COUNTS for value in ("0", "2147483648")),
    *(("rounds", value, _COUNT, repr(value)) for value in ("1.5", "", "1_0", "\u0663")),
    *((name, "1_0.5", "a number", "'1_0.5'") for name in _FLOATS),
    *((name, value, "0, or a number of at least 1.2e-38", repr(value))
      for name in _FLOATS for value in ("1e-400", "1e-46", "-.1e-50")),
    *((name, value, "a number", value) for name in _FLOATS for value in ("nan", "inf", "-0.1")),
    *((name, "1e39", "a number", "1e+39") for name in _FLOATS),
    *((name, "0", "a number > 0, at most 3.4e38", "0.0") for name in _ABOVE_0),
    *((name, "1", "a number from 0 to less than 1", "1.0") for name in ("b1", "b2")),
    ("alpha", "abc", "a number > 0", "'abc'"),
    ("max_delay", "-1", "an integer from 0 to 2147483647", "-1"),
    ("seed", "-1", _SEED, "-1"),
    ("seed", "4294967296", _SEED, "4294967296"),
    ("seed", "None", _SEED, "'None'"),
    ("server", "cc_fedams ", _SERVERS, "'cc_fedams '; did you mean cc_fedams?"),
    ("server", "yogi", _SERVERS, "'yogi'; did you mean fedyogi?"),
    ("model", "CNN ", "mlp, logistic, cnn", "'CNN '; did you mean cnn?"),
    ("resume", "Flase", "given, or with `no` before its name", "'Flase'"),
    ("out_dir", " ", "a path", "' '"),
])  # fmt: skip
def test_value_outside_its_domain(name, value, expected, found):
    message = f"--{name}: expected {expected}..., found {found}"
    refused(message, _parse, "--server_lr=0.1", f"--{name}={value}")


_TAGS = "--dataset=stackoverflow --model=tags"
_FLAG = "expected a flag that --help names, found an unknown one"
_LEFTOVER = "leftover word: expected only --flag=value, found"
_WORK = "expected a product with the work that is an integer from 1 to 2147483647, found"
_BOTH = "expected with cc_fedadagrad, --smoothness and --gradient_bound together, ... --server="
_SEVERAL = "--num_processes, --process_id: expected with --coordinator=HOST:PORT, found"
_PLACE = "--coordinator: expected auto, or HOST:PORT with both, found"


@pytest.mark.parametrize(("words", "message"), [
    ("--buffer_size=6 --num_clients=5", "--buffer_size: expected at most ..., 5, found 6"),
    ("--local_epochs=3 --local_steps=9", "--local_steps: expected without ..., found 9 ..."),
    ("--randomness=1.5", f"--randomness: {_WORK} 1.5 with --local_epochs=3"),
    ("--randomness=1e9", f"--randomness: {_WORK} 1000000000.0 with --local_epochs=3"),
    ("--alpha=1 --partition=iid", "--alpha: expected with dirichlet, ... --partition=iid"),
    ("--partition=natural", "--partition: expected iid, ... with --dataset=fashion_mnist"),
    ("--dataset=digits", "--model: expected mlp, logistic, found cnn with --dataset=digits"),
    ("--model=tags", "--model: expected cnn, ..., found tags with --dataset=fashion_mnist"),
    (_TAGS, "--data_dir: expected the folder of the files of stackoverflow, found none"),
    (f"{_TAGS} --data_dir=a", "--partition: expected natural, found dirichlet with ..."),
    ("--max_words=9", "--max_words: expected with stackoverflow, ..., found ...=fashion_mnist"),
    ("--dataset=digits --model=mlp --data_dir=a", "--data_dir: expected with ...=digits"),
    ("--server=cc_fedadagrad --b2=0", "--b2: expected with cc_fedadam, cc_fedams, ...fedadagrad"),
    ("--server=cc_fedavg", "--server_lr: expected 1, ..., found 0.1 with --server=cc_fedavg"),
    ("--eps=0", "--eps: expected > 0, ..., found 0 with --initial_accumulator=0"),
    ("--resume", "--resume: expected with the --out_dir of the run to resume, found without"),
    ("--overwrite", "--overwrite: expected with the --out_dir of the run ..., found without"),
    ("--overwrite --resume --out_dir=a", "--overwrite: expected without --resume, found ..."),
    ("--sever_lr=1", f"--sever_lr: {_FLAG}; did you mean --server_lr?"),
    ("--seeds=0, 1", f"--seeds: {_FLAG}; did you mean --seed?"),
    ("--" + "b" * 5998 + "=1", f"--bbb...b: {_FLAG}"),
    ("-x", f"-x: {_FLAG}"),
    ("-\x1d", f"-\\x1d: {_FLAG}; ..."),
    ("--undefok=x --x=1", "--undefok: expected only flags that --help names, found it"),
    ("--rounds", f"--rounds: expected {_COUNT}, found no value"),
    ("--noprogress=1", "--noprogress: expected no value, found '1'"),
    ("--flagfile=no/such", "--flagfile: expected a file of flags, ... 'no/such'"),
    ("--preset=digit", "--preset: expected digits, ..., found 'digit'; did you mean digits?"),
    ("--resume False", f"{_LEFTOVER} 'False'; switches are written --resume or --noresume"),
    ("--out_dir=a b", f"{_LEFTOVER} 'b'"),
    ("b" * 9000, f"{_LEFTOVER} '{'b' * 299}"),
    ("-", f"{_LEFTOVER} '-'"),
    ("-- --seed=1", f"{_LEFTOVER} '--seed=1'"),
    ("--gradient_bound=1 --server=cc_fedadagrad", f"--gradient_bound: {_BOTH}cc_fedadagrad"),
    ("--smoothness=1 --gradient_bound=1", f"--smoothness: {_BOTH}cc_fedams"),
    ("--coordinator=here", f"{_PLACE} 'here' with --num_processes=None and --process_id=None"),
    ("--coordinator=here:1 --num_processes=2", f"{_PLACE} 'here:1' with --num_processes=2 ..."),
    ("--coordinator=here:1 --num_processes=2 --process_id=2",
     "--process_id: expected 0 to 1 (--num_processes=2), found 2"),
    ("--num_processes=2", f"{_SEVERAL} 2, None with --coordinator=None"),
    ("--coordinator=auto --process_id=0", f"{_SEVERAL} None, 0 with --coordinator=auto"),
    ("--coordinator=auto", "--coordinator: expected with an --out_dir ..., found without"),
])  # fmt: skip
def test_flags_that_do_not_go_together(words, message):
    refused(message, _parse, "--server_lr=0.1", *words.split(" "))


@pytest.mark.parametrize("line", ["--sever_lr=1", "--undefok=a", "--b2=1", "resume", "--alpha 1"])
def test_a_flag_file_is_read_as_strictly(tmp_path, line):
    file = tmp_path / "a.flags"
    file.write_text(f"--server_lr=0.1\n{line}\n")
    name = "leftover word" if line == "resume" else line.split("=")[0]
    refused(f"{name}: expected ..., found ...", _parse, f"--flagfile={file}")


@given(st.just(0.0) | st.floats(2**-126, 3.4e38), st.integers(0, 2**32 - 1))
def test_numbers_come_through_unchanged(server_lr, seed):
    config = _parse(f"--server_lr={server_lr!r}", f"--seed={seed}")
    assert (config.server_lr, config.seed) == (server_lr, seed)


@given(st.integers(1, 20), st.floats(0.01, 10))
def test_local_work_is_taken_exactly_where_the_schedule_takes_it(local_epochs, randomness):
    args = ["--server_lr=1", f"--local_epochs={local_epochs}", f"--randomness={randomness!r}"]
    try:
        ccfl.random_schedule(0, 1, 5, local_work=local_epochs, randomness=randomness)
    except ValueError:
        refused("--randomness: expected a product ..., found ...", _parse, *args)
    else:
        assert math.isclose(_parse(*args).randomness, randomness)


def test_servers_and_datasets_are_those_of_the_library():
    for server, names in methods.SERVERS.items():
        function = getattr(ccfl, server, None) or getattr(ccfl.systems, server)
        parameters = {*inspect.signature(function).parameters}
        if server == "fadas":  # the moments' are passed on
            parameters = {"learning_rate", *inspect.signature(ccfl.cc_fedams).parameters}
        assert parameters - {"nesterov"} == ({"learning_rate", *names} if parameters else set())
    named = {name for name, one in datasets.DATASETS.items() if not one.arguments}
    assert named == {*NUM_CLASSES}
    own = {*datasets.DATASETS} - named
    assert all(callable(getattr(ccfl.data, f"load_{name}")) for name in own)


@pytest.mark.parametrize("preset", _PRESETS, ids=lambda path: path.stem)
def test_presets_parse(preset):
    assert len(_PRESETS) == 3 and preset.stem in flag.presets()
    config = _parse(f"--flagfile={preset}")
    assert config.server == "cc_fedams" and config == _parse(f"--preset={preset.stem}")
    # Another method needs no more than its own name and rate.
    assert _parse(f"--preset={preset.stem}", "--server=cc_fedsgd", "--server_lr=1").b2 is None


# As a run or a sweep goes on these may differ: a run may become longer too, a trial may not.
_ALWAYS = {
    *("lanes", "devices", "data_memory", "progress", "resume", "overwrite", "out_dir"),
    *("compilation_cache", "coordinator", "num_processes", "process_id", "smoothness"),
    *("gradient_bound", "checkpoint_every", "keep_checkpoints", "accept_changed", "tensorboard"),
    *("data_dir", "schedule_file", "fine_tune"),
}


def test_what_may_change_and_what_a_sweep_may_vary():
    assert settings.free(a_run=False) == _ALWAYS
    own = {"rounds", "eval_every", "max_rejected", "target"}
    assert settings.free(a_run=True) == _ALWAYS | own
    assert {*RUN} - _ALWAYS == {*settings.DECIDING}


def test_what_is_of_a_method_and_what_of_its_problem():
    """A larger alpha, more rounds or no attack are an easier problem, and no better setting."""
    seeds = {"seed", "data_seed", "init_seed", "schedule_seed"}
    own = {"method", "rule", "upload", "weights", "aggregate", "local", "server", "server_lr"}
    own |= {*methods.HYPERPARAMETERS, "local_lr", "batch_size", "normalise"}
    assert {*settings.SEEDS} == seeds
    assert {*settings.DECIDING} - {*settings.PROBLEM} == own | seeds
    assert {"alpha", "model", "rounds", "max_delay", "attack", "privacy"} < {*settings.PROBLEM}
