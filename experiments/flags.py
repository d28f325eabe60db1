"""The flags of an experiment, read once into a frozen `Config`.

Everything that can be judged without data is judged here: each flag's own domain, then what flags
say together. A flag that the chosen method or data set has no use for is refused, never ignored.
Nothing here imports JAX, so `--help` and every complaint come at once.
"""

import difflib
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple

from absl import flags

from experiments.rules import INT32_MAX, MODELS, SERVERS, check_together

DATASETS = tuple(MODELS)
PARTITIONS = ("iid", "dirichlet", "dirichlet_client", "natural")
DTYPES = ("float32", "bfloat16")
NORMALISATIONS = ("steps", "epochs", "none")
_LONGEST_NAME = 100
_FLOAT32_MAX = 3.4e38


@dataclass(frozen=True)
class Config:
    """Every resolved setting of one run; None where the run has no use for it.

    `local_epochs` and `local_steps` exclude each other: the one that is not None is the unit of
    local work. `server_lr` is 1 for cc_fedavg. The flags' help says what each field means.
    """

    dataset: str
    data_dir: str | None
    model: str
    num_clients: int
    alpha: float | None
    partition: str
    max_examples: int | None
    min_examples: int | None
    max_words: int | None
    buffer_size: int
    max_delay: int | None
    local_epochs: int | None
    local_steps: int | None
    randomness: float
    local_lr: float
    batch_size: int
    normalise: str
    server: str
    server_lr: float
    b1: float | None
    b2: float | None
    eps: float | None
    initial_accumulator: float | None
    smoothness: float | None
    gradient_bound: float | None
    rounds: int
    eval_every: int
    seed: int
    max_rejected: int | None
    checkpoint_every: int | None
    keep_checkpoints: int
    out_dir: str | None
    resume: bool
    overwrite: bool
    compute_dtype: str
    lanes: int | None
    devices: int | None
    data_memory: float | None
    schedule_file: str | None
    progress: bool
    compilation_cache: str
    coordinator: str | None
    num_processes: int | None
    process_id: int | None


class Domain(NamedTuple):
    define: Callable  # absl's DEFINE_ function of that type
    legal: str
    holds: Callable[[object], bool]


class Flag(NamedTuple):
    domain: Domain
    default: object
    help: str


def _one_of(names: tuple[str, ...]) -> Domain:
    return Domain(flags.DEFINE_string, ", ".join(names), lambda v: v in names)


def _whole(least: int, most: int = INT32_MAX) -> Domain:
    legal = f"a whole number from {least} to {most}"
    return Domain(flags.DEFINE_integer, legal, lambda v: least <= v <= most)


PATH = Domain(flags.DEFINE_string, "a path", lambda v: bool(v.strip()))
_SWITCH = Domain(flags.DEFINE_boolean, "given, or with `no` before its name", lambda v: True)
POSITIVE = Domain(
    flags.DEFINE_float, "a number above 0, at most 3.4e38", lambda v: 0 < v <= _FLOAT32_MAX
)
_RATE = Domain(flags.DEFINE_float, "a number from 0 to 3.4e38", lambda v: 0 <= v <= _FLOAT32_MAX)
_DECAY = Domain(flags.DEFINE_float, "a number from 0 to below 1", lambda v: 0 <= v < 1)

_GROUPS = {
    "Data and model": {
        "dataset": Flag(_one_of(DATASETS), "fashion_mnist", "data set"),
        "data_dir": Flag(
            PATH, None, "folder of the data set's files (IDX, CIFAR binary, Stack Overflow SQLite)"
        ),
        "model": Flag(
            _one_of(tuple(dict.fromkeys(m for models in MODELS.values() for m in models))),
            "cnn",
            "model; cnn is NIID-Bench's, mcmahan_cnn is for 28x28 images too, resnets have "
            "GroupNorm, tags is for stackoverflow",
        ),
        "num_clients": Flag(
            _whole(1), 100, "clients the training data are spread over; of stackoverflow drawn"
        ),
        "partition": Flag(
            _one_of(PARTITIONS),
            "dirichlet",
            "dirichlet: per label, over clients (NIID-Bench); dirichlet_client: per client, over "
            "labels (Hsu et al.); natural: the clients that come with the data",
        ),
        "alpha": Flag(POSITIVE, 0.5, "Dirichlet concentration; small is skewed"),
        "max_examples": Flag(_whole(1), 500, "stackoverflow: most examples of a client"),
        "min_examples": Flag(_whole(1), 1, "stackoverflow: clients with fewer are left out"),
        "max_words": Flag(_whole(1), 150, "stackoverflow: words of a text, the rest is cut off"),
    },
    "Schedule": {
        "rounds": Flag(_whole(1), 500, "server updates in all"),
        "buffer_size": Flag(_whole(1), 5, "m, uploads the server waits for in a round"),
        "max_delay": Flag(_whole(0), 5, "tau, oldest model a client may start from"),
        "local_epochs": Flag(_whole(1), 3, "K in epochs; a client does 1 to K * randomness"),
        "local_steps": Flag(_whole(1), None, "K in steps, instead of --local_epochs"),
        "randomness": Flag(POSITIVE, 2.0, "R, spread of local work"),
        "schedule_file": Flag(
            PATH,
            None,
            "replay this schedule.npz, with the seed for {seed} in its name; the flags of this "
            "group must cover it, --max_delay where it is given",
        ),
    },
    "Clients": {
        "local_lr": Flag(_RATE, 0.01, "eta_l, step size of local SGD"),
        "batch_size": Flag(_whole(1), 20, "rows of a local step"),
        "normalise": Flag(_one_of(NORMALISATIONS), "steps", "what a client divides its delta by"),
        "compute_dtype": Flag(
            _one_of(DTYPES), "float32", "what the model computes in; all that is kept stays float32"
        ),
        "lanes": Flag(
            _whole(1), None, "clients that advance together on a device; unset: by model and device"
        ),
        "devices": Flag(
            _whole(1), None, "devices to spread clients over; unset: all, or one per CPU core"
        ),
        "data_memory": Flag(
            POSITIVE,
            None,
            "MB of a device for training data; more are sent ahead in pieces, two at a time; "
            "unset: half an accelerator's memory, no limit on a CPU",
        ),
    },
    "Server": {
        "server": Flag(_one_of(tuple(SERVERS)), "cc_fedams", "method"),
        "server_lr": Flag(_RATE, None, "eta; required, except for cc_fedavg, where it is 1"),
        "b1": Flag(_DECAY, 0.9, "beta, momentum"),
        "b2": Flag(_DECAY, 0.99, "gamma, decay of the second moment"),
        "eps": Flag(_RATE, 1e-3, "added to the root of the second moment"),
        "initial_accumulator": Flag(_RATE, 0.0, "second moment before the first round"),
        "smoothness": Flag(
            POSITIVE, None, "L of the theorem: with --gradient_bound its conditions are printed"
        ),
        "gradient_bound": Flag(POSITIVE, None, "G of the theorem; cc_fedadagrad alone has one"),
    },
    "Run": {
        "seed": Flag(_whole(0, 2**32 - 1), 0, "of partition, schedule, model and batches"),
        "eval_every": Flag(_whole(1), 10, "rounds between evaluations"),
        "max_rejected": Flag(
            _whole(0), None, "uploads that may be left out as not finite; more end the run"
        ),
        "checkpoint_every": Flag(
            _whole(1),
            None,
            "rounds between checkpoints; unset: one with each evaluation, of a sweep one a minute",
        ),
        "keep_checkpoints": Flag(_whole(1), 2, "newest checkpoints kept, besides the best by test"),
        "out_dir": Flag(PATH, None, "run folder; unset: runs/DATASET-SERVER-001, -002, ..."),
        "resume": Flag(_SWITCH, False, "go on from the newest checkpoint in --out_dir"),
        "overwrite": Flag(_SWITCH, False, "remove the run that --out_dir holds, and start anew"),
        "progress": Flag(_SWITCH, True, "show a progress bar where stderr is a terminal"),
        "compilation_cache": Flag(
            PATH, "~/.cache/ccfl_jax", "folder of compiled programs, for the next start; or off"
        ),
    },
    "Several processes": {
        "coordinator": Flag(
            PATH, None, "HOST:PORT of process 0, the same for all; or auto, where JAX can tell"
        ),
        "num_processes": Flag(_whole(1), None, "how many; each is given the same other flags"),
        "process_id": Flag(_whole(0), None, "which one this is, from 0"),
    },
}
FLAGS = {name: flag for group in _GROUPS.values() for name, flag in group.items()}


def parse(argv: list[str]) -> Config:
    """Reads a command line (`argv[0]` is the program); a flag given twice counts as given last.

    Raises:
        ValueError: one line that names the flag, what was found and what is legal: for an unknown
            flag (in a flag file too), a leftover word, a value outside its domain, flags that
            exclude each other, and any flag that the run would have no use for.
    """
    return resolve(*read(argv, FLAGS))


def resolve(values: dict[str, object], given: set[str]) -> Config:
    """The `Config` of flags that were read, once they are found to be legal."""
    check_domains(values, given, FLAGS)
    check_together(values, given)
    return Config(**{field.name: values[field.name] for field in fields(Config)})


def check_domains(values: dict[str, object], given: set[str], table: dict[str, Flag]) -> None:
    """Refuses a value outside its flag's domain."""
    for name, value in values.items():
        domain = table[name].domain
        if (name in given or value is not None) and not domain.holds(value):
            raise ValueError(
                f"--{name}: found {value!r:.300}, legal: {domain.legal}{_nearest(domain, value)}"
            )


def help_text() -> str:
    """What `--help` prints: every flag with its default, meaning and domain, by group."""
    lines = [
        "Trains one federated run and writes its folder.",
        "",
        "usage: python -m experiments.train [--flagfile=PRESET] [--FLAG=VALUE ...]",
        "",
        "Presets are in experiments/presets/. A flag given twice counts as given last.",
    ]
    return "\n".join(lines + described(_GROUPS))


def described(groups: dict[str, dict[str, Flag]]) -> list[str]:
    """Lines that name every flag with its default, meaning and domain, by group."""
    lines = []
    for title, group in groups.items():
        lines += ["", f"{title}:"]
        for name, flag in group.items():
            default = "" if flag.default is None else f"={flag.default}"
            legal = "" if flag.domain in (PATH, _SWITCH) else f" [{flag.domain.legal}]"
            text = f"--{name}{default}: {flag.help}{legal}"
            lines.append(textwrap.fill(text, 98, initial_indent="  ", subsequent_indent="      "))
    return lines


def read(argv: list[str], table: dict[str, Flag]) -> tuple[dict[str, object], set[str]]:
    """The value of every flag, and the names of those that were given."""
    values = flags.FlagValues()
    for name, flag in table.items():
        flag.domain.define(name, flag.default, flag.help, flag_values=values)
    try:
        args = values.read_flags_from_files(argv[1:])
        if any(arg.lstrip("-").split("=")[0] == "undefok" for arg in args):
            raise ValueError("--undefok: found on the command line, legal: only flags that exist")
        _check_lengths(args)
        leftover = values([argv[0], *args])[1:]
    except flags.Error as error:
        raise ValueError(_one_line(error, table)) from None
    if leftover:
        hint = "; switches are written --resume or --noresume" if "alse" in leftover[0] else ""
        raise ValueError(
            f"leftover word: found {leftover[0]!r:.300}, legal: only --flag=value{hint}"
        )
    given = {name for name in table if values[name].present}
    return {name: values[name].value for name in table}, given


def _check_lengths(args: list[str]) -> None:
    """Refuses what absl would look for the nearest flag of, a call deep for each letter."""
    for arg in args:
        name = arg.partition("=")[0]
        if arg.startswith("-") and len(name) > _LONGEST_NAME:
            raise ValueError(
                f"flag: found one of {len(name)} letters, {name[:40]!r}..., legal: those of --help"
            )


def _one_line(error: flags.Error, table: dict[str, Flag]) -> str:
    text = " ".join(str(error).split()).removeprefix("ERROR:: ")
    illegal = re.match(r"flag --(\w+)=(.*?): ", text)
    if illegal:
        name, value = illegal.groups()
        return f"--{name}: found {value!r:.300}, legal: {table[name].domain.legal}"
    return text


def _nearest(domain: Domain, value: object) -> str:
    """A hint at the legal name that looks most like `value`."""
    if not isinstance(value, str) or domain is PATH:
        return ""
    legal = domain.legal.split(", ")
    near = difflib.get_close_matches(value.strip().lower(), legal, 1, 0.4)
    return f"; did you mean {near[0]}?" if near else ""
