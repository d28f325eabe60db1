"""The flags of a schedule: those of a run, by which rule it is made, and where it goes."""

import math
import re
from pathlib import Path
from typing import NamedTuple

from absl import flags

from experiments.flags import (
    FLAGS,
    PATH,
    POSITIVE,
    Config,
    Domain,
    Flag,
    check_domains,
    described,
    read,
    resolve,
)
from experiments.rules import refuse

# What can be written for a flag; a number after = is what a missing argument is.
DISTRIBUTIONS = (
    "constant(value)",
    "uniform(low,high)",
    "exponential(mean)",
    "log_normal(mu=1,sigma=0.6,scale=0.005)",
    "half_normal(sigma=1,least=0)",
    "pareto(shape=1,least=1,most=60)",
    "three_classes(concentration=1,low=1,high=2,low=3,high=5,low=5,high=8)",
)
AVAILABILITIES = (
    "always",
    "bernoulli(p,period)",
    "cyclic(period,on)",
    "diurnal(start=22,hours=8)",
    "markov(mean_on,mean_off)",
    "label(period)",
    "label_diurnal(start=22,hours=8)",
    "fedscale(PATH)",
    "flash(PATH)",
    "csv(PATH)",
    "npz(PATH)",
)
_OF_LABELS = ("label", "label_diurnal")


def expression(text: str, forms: tuple[str, ...]) -> tuple[str, tuple] | None:
    """What `text` says, NAME(ARGUMENT,...) or NAME: the name and its arguments, floats or one path.

    None where it has none of the forms, or an argument is no finite number.
    """
    name, inside = _parts(text)
    form = next((form for form in forms if _parts(form)[0] == name), None)
    if form is None:
        return None
    wanted = _parts(form)[1]
    if wanted == "PATH":
        return (name, (inside.strip(),)) if inside.strip() else None
    words, names = (part.split(",") if part else [] for part in (inside, wanted))
    # Those that are missing have the form's own number; a name without one is none.
    words += [known.partition("=")[2] for known in names[len(words) :]]
    try:
        numbers = tuple(map(float, words))
    except ValueError:
        return None
    return (
        (name, numbers) if len(words) == len(names) and all(map(math.isfinite, numbers)) else None
    )


def _parts(text: str) -> tuple[str, str]:
    found = re.fullmatch(r"(\w+)(?:\((.*)\))?", text.strip())
    return (found[1], found[2] or "") if found else ("", "")


def _domain(forms: tuple[str, ...]) -> Domain:
    return Domain(
        flags.DEFINE_string, ", ".join(forms), lambda text: expression(text, forms) is not None
    )


def _names(*names: str) -> Domain:
    return Domain(flags.DEFINE_string, ", ".join(names), lambda value: value in names)


_DISTRIBUTION = _domain(DISTRIBUTIONS)
_CORRELATION = Domain(flags.DEFINE_float, "a number from -1 to 1", lambda value: -1 <= value <= 1)
_FROM_0, _FROM_1 = (FLAGS[name].domain for name in ("max_delay", "buffer_size"))
_GENERAL = {
    "rule": Flag(
        _names("paper", "rounds", "clock"),
        "clock",
        "paper: cohorts of all clients and random delays; rounds: the same of those available; "
        "clock: devices, availability and a server's buffer on a virtual clock",
    ),
    "file": Flag(
        PATH,
        None,
        "where it goes, NAME.npz; {seed} in it is the seed. NAME.png is its picture, of the clock "
        "NAME.log.npz its tasks",
    ),
    "show": Flag(PATH, None, "show this schedule instead; with --num_clients, --overwrite alone"),
    "overwrite": Flag(FLAGS["overwrite"].domain, False, "replace the files of that name"),
}
_ROUNDS = {"round_seconds": Flag(POSITIVE, 60.0, "rounds: seconds from one round to the next")}
_AVAILABLE = {
    "availability": Flag(
        _domain(AVAILABILITIES),
        "always",
        "rounds, clock: who is there; seconds, of diurnal hours. Phases of cyclic and zones of "
        "diurnal are drawn; label ones go with a client's main label. Of a trace's clients the "
        "first --num_clients",
    )
}
_CLOCK = {
    "step": Flag(_DISTRIBUTION, "constant(1)", "seconds a local step, drawn for each client"),
    "download": Flag(_DISTRIBUTION, None, "seconds, drawn for each client, written as --step"),
    "upload": Flag(_DISTRIBUTION, None, "seconds, drawn for each client, written as --step"),
    "capacity": Flag(
        PATH,
        None,
        "FedScale's file of device capacities, of which the first --num_clients are taken, instead "
        "of --step, --download, --upload",
    ),
    "task": Flag(_DISTRIBUTION, None, "factor of a task's computing time, written as --step"),
    "extra": Flag(_DISTRIBUTION, None, "seconds added to each task, written as --step"),
    "concurrency": Flag(_FROM_1, 10, "clients under way at most"),
    "start": Flag(
        _names("replace", "constant", "poisson"),
        "replace",
        "replace: whenever fewer are under way; constant, poisson: --rate times a second",
    ),
    "rate": Flag(POSITIVE, None, "starts a second; with constant, poisson"),
    "max_staleness": Flag(_FROM_0, None, "staler uploads are dropped; unset: none"),
    "timeout": Flag(POSITIVE, None, "seconds after which a round ends; unset: it waits"),
    "on_timeout": Flag(
        _names("fire", "skip"), "fire", "a round of what is there, or that is dropped"
    ),
    "work_correlation": Flag(
        _CORRELATION, 0.0, "of a client's work with its slowness; 1: the slowest do most"
    ),
}
_OWN = _GENERAL | _ROUNDS | _AVAILABLE | _CLOCK
# What a rule has no use for, besides all of the group that is not its own.
_OF_RULE = {"paper": {}, "rounds": _ROUNDS | _AVAILABLE, "clock": _AVAILABLE | _CLOCK}


class Asked(NamedTuple):
    """What the command was asked for.

    Attributes:
        config: the run's settings; None where a schedule is shown.
        options: the flags of the group that the rule uses, by name, and `rule`.
        file: where the schedule goes, or is.
        num_clients: for how many clients a schedule is shown, or None where it has to say.
        show: whether it is there already.
        overwrite: whether files of that name may be replaced.
    """

    config: Config | None
    options: dict[str, object]
    file: Path
    num_clients: int | None
    show: bool
    overwrite: bool


def parse_schedule(argv: list[str]) -> Asked:
    """Reads a command line (`argv[0]` is the program).

    A `max_delay` in a flag file is a word of the training for the clock, on the command line it is
    refused.

    Raises:
        ValueError: as `flags.parse`; for flags that the rule has no use for.
    """
    values, given = read(argv, FLAGS | _OWN)
    check_domains({name: values[name] for name in _OWN}, given & _OWN.keys(), _OWN)
    if values["show"] is not None:
        return _shown(values, given)
    if values["file"] is None:
        raise ValueError("--file: found none, legal: NAME.npz, or --show=NAME.npz")
    typed = {word.lstrip("-").partition("=")[0] for word in argv[1:]}
    _check_rule(values, given, typed)
    _check_starts(values, given)
    _check_capacity(values, given)
    of_run = {name: values[name] for name in FLAGS} | {"overwrite": False}
    if of_run["server_lr"] is None:
        of_run["server_lr"] = 1.0  # no schedule hangs on it
    config = resolve(of_run, given & FLAGS.keys() - {"overwrite"})
    _check_labels(values)
    options = {name: values[name] for name in ("rule", *_OF_RULE[values["rule"]])}
    file = _npz("file", values["file"].replace("{seed}", str(config.seed)))
    return Asked(config, options, file, config.num_clients, False, values["overwrite"])


def _shown(values: dict[str, object], given: set[str]) -> Asked:
    others = sorted(given - {"show", "num_clients", "overwrite"})
    if others:
        raise ValueError(
            f"--{others[0]}: found with --show, legal: --num_clients, --overwrite alone"
        )
    num_clients = values["num_clients"] if "num_clients" in given else None
    check_domains({"num_clients": num_clients}, given & {"num_clients"}, FLAGS)
    return Asked(None, {}, _npz("show", values["show"]), num_clients, True, values["overwrite"])


def _npz(name: str, text: str) -> Path:
    path = Path(text)
    if path.suffix != ".npz" or path.stem.endswith(".log"):
        raise ValueError(f"--{name}: found {text!r:.300}, legal: NAME.npz, other than NAME.log.npz")
    return path


def _check_rule(values: dict[str, object], given: set[str], typed: set[str]) -> None:
    rule = values["rule"]
    for name in sorted(given & _OWN.keys() - _GENERAL.keys() - _OF_RULE[rule].keys()):
        users = ", ".join(known for known, own in _OF_RULE.items() if name in own)
        raise ValueError(f"--{name}: found with --rule={rule}, legal: with {users}")
    if rule == "clock" and "max_delay" in typed:
        raise ValueError(
            "--max_delay: found with --rule=clock, legal: with paper, rounds; --max_staleness drops"
        )
    refused = {
        "schedule_file": "--show=PATH, which shows one",
        "resume": "--overwrite, to make it anew",
        "coordinator": "one process",
    }
    refuse(given, refused, "a schedule to make")


def _check_starts(values: dict[str, object], given: set[str]) -> None:
    start = values["start"]
    if (values["rate"] is None) != (start == "replace"):
        legal = "none with replace, a number with constant, poisson"
        raise ValueError(f"--rate: found {values['rate']} with --start={start}, legal: {legal}")
    if "on_timeout" in given and values["timeout"] is None:
        raise ValueError("--on_timeout: found no --timeout, legal: with one")


def _check_capacity(values: dict[str, object], given: set[str]) -> None:
    others = sorted(given & {"step", "download", "upload"})
    if values["capacity"] is not None and others:
        raise ValueError(f"--{others[0]}: found with --capacity, legal: without, the file says it")


def _check_labels(values: dict[str, object]) -> None:
    name = expression(values["availability"], AVAILABILITIES)[0]
    if name in _OF_LABELS and values["dataset"] == "stackoverflow":
        raise ValueError(
            f"--availability: found {name} with --dataset=stackoverflow, legal: a model without "
            "labels, its samples have several"
        )


def schedule_help_text() -> str:
    """What `--help` of a schedule prints."""
    lines = [
        "Makes a schedule, writes it and its picture, and says what is in it.",
        "",
        "usage: python -m experiments.schedule --file=NAME.npz [--rule=RULE] [--FLAG=VALUE ...]",
        "       python -m experiments.schedule --show=NAME.npz",
        "",
        "The other flags are those of `python -m experiments.train --help`: the seed, clients,",
        "buffer and work of the run it is made for. Exit codes: 0 done, 2 refused.",
    ]
    # The distributions are listed once.
    listed = {
        name: flag._replace(domain=PATH)
        if flag.domain is _DISTRIBUTION and name != "step"
        else flag
        for name, flag in _OWN.items()
    }
    return "\n".join(lines + described({"Schedule": listed}))
