"""The paper's experiments: presets from `presets/paper.toml`, and their trials."""

import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ..config.methods import HYPERPARAMETERS, SERVERS
from ..config.run_flags import parse
from ..config.sweep_flags import Trial, Trials, name_of

_FILE = Path(__file__).parents[1] / "presets" / "paper.toml"
_KINDS = {
    "title": str,
    "flags": dict,
    "claims": list,
    "methods": list,
    "local_lr": list,
    "vary": dict,
}
_HALF_STEPS = [10 ** (k / 2) for k in range(-6, 6)]  # 10^-3, 10^-2.5, ..., 10^2.5
_PAPER = 9  # of them up to 10^1
_EPS = [1e-5, 1e-4, 1e-3]  # of a joint grid


class Preset(NamedTuple):
    """One figure or table.

    Attributes:
        name, title: of the experiment.
        methods: the server methods it compares.
        flags: name -> value, those of `experiments.train` common to all its trials.
        local_lr: local rates that are tuned together with the server's; empty for the flag's alone.
        vary: for a sensitivity figure the one flag it varies and its values, else empty.
        claims: of the paper, see the head of `presets/paper.toml`.
    """

    name: str
    title: str
    methods: list[str]
    flags: dict[str, Any]
    local_lr: list[float]
    vary: dict[str, list[float]]
    claims: list[dict[str, Any]]


def names() -> list[str]:
    """All experiments, in the paper's order."""
    return [name for name in _read() if name != "common"]


def preset(name: str, own_flags: Mapping[str, str]) -> Preset:
    """An experiment, with the flags of the command line in place of its own.

    Raises:
        ValueError: if there is no experiment of that name.
    """
    table = _read()
    if name not in names():
        raise ValueError(f"NAME: expected list, all, {', '.join(names())}, found {name!r}")
    common, own = table["common"], table[name]
    flags = common["flags"] | own["flags"] | dict(own_flags)
    if flags.get("partition") in ("natural", "iid") and "alpha" not in own_flags:
        flags.pop("alpha", None)
    return Preset(
        name,
        own["title"],
        own.get("methods", common["methods"]),
        flags,
        [] if "local_lr" in own_flags else own.get("local_lr", []),
        own.get("vary", {}),
        own["claims"],
    )


def rate_grid(preset: Preset, grid: str, rounds: int | None) -> Trials:
    """A trial for every method, server rate, eps and local rate, all with the same seed.

    Args:
        preset: the experiment.
        grid: "paper", its nine rates; "coarse", every second of them; "wide", three larger ones
            more for CC-FedSGD, and for CC-FedAvgM, which is then compared too; "joint", the coarse
            ones by three eps for methods with eps, the paper's for the others.
        rounds: in place of the preset's, or None.
    """
    methods = [*preset.methods, *(["cc_fedavgm"] if grid == "wide" else [])]
    trials = {}
    for method in methods:
        rates, every_eps = _reach(method, grid)
        for local_lr, rate, eps in itertools.product(preset.local_lr or [None], rates, every_eps):
            setting = {"server": method, "server_lr": rate, "local_lr": local_lr, "eps": eps}
            trials |= trial(preset, setting, rounds)
    return trials


def _reach(method: str, grid: str) -> tuple[Sequence[float | None], Sequence[float | None]]:
    """The server rates, and eps, to try for a method; None leaves the flag as it is."""
    if method == "cc_fedavg":
        return [None], [None]
    if grid == "wide" and method in ("cc_fedsgd", "cc_fedavgm"):
        return _HALF_STEPS, [None]
    joint = grid == "joint" and "eps" in SERVERS[method]
    rates = _HALF_STEPS[: _PAPER : 2 if joint or grid == "coarse" else 1]
    return rates, _EPS if joint else [None]


def trial(preset: Preset, setting: Mapping[str, Any], rounds: int | None = None) -> Trials:
    """name -> the trial of `setting` over the preset's flags; None values are left out."""
    setting = {name: _text(value) for name, value in setting.items() if value is not None}
    used = SERVERS[setting["server"]]
    flags = {
        name: _text(value)
        for name, value in (preset.flags | setting).items()
        if name in used or name not in HYPERPARAMETERS
    }
    if rounds is not None:
        flags["rounds"] = str(rounds)
    config = parse(["reproduce", *(f"--{name}={value}" for name, value in flags.items())])
    return {name_of(setting): Trial(setting, replace(config, out_dir=None))}


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _read() -> dict[str, Any]:
    """The tables of the file; ValueError with its name, unless they are as its head says."""
    try:
        tables = tomllib.loads(_FILE.read_bytes().decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{_FILE}: expected TOML, found {error}") from None
    for name, table in {"common": None, **tables}.items():
        if not _is_experiment(name, table):
            raise ValueError(f"{_FILE}: expected tables as its head says, found {name!r} otherwise")
    return tables


def _is_experiment(name: str, table: Any) -> bool:
    needed = {"methods", "flags"} if name == "common" else {"title", "flags", "claims"}
    return (
        re.fullmatch(r"\w+", name) is not None  # it names a folder
        and isinstance(table, dict)
        and needed <= table.keys() <= _KINDS.keys()
        and all(isinstance(value, _KINDS[key]) for key, value in table.items())
        and all(method in tuple(SERVERS) for method in table.get("methods", []))
        and table.get("vary", {}).keys() <= {*HYPERPARAMETERS}
        and len(table.get("vary", {})) <= 1
    )
