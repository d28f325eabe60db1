"""The method of a run, from its flags: local optimiser, rule, aggregator, server.

Numbers in brackets are arguments of the compiled program where the function that a flag names takes
arrays for them, so a sweep over them compiles nothing again; the others are part of the program.
"""

import dataclasses
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ccfl_jax as ccfl
from ccfl_jax import systems, terms

from ..config import expression
from ..config.methods import (
    COLLUDING,
    FORMS,
    MODELS_SENT,
    OF_THE_MODEL,
    ON_DATA,
    PERSONAL,
    SERVERS,
    SEVERAL,
    named,
)
from ..config.run_flags import Config
from . import personal, pieces, privacy

Numbers = dict[str, Any]  # name -> float32, bool `[clients]`, or a dict of such; or `[trials, ...]`
Array = jax.Array


class Call(NamedTuple):
    """A function that a flag names.

    Attributes:
        name: as on the command line.
        function: it.
        fixed: its arguments that are part of the program.
        numbers: its arguments that are those of the program.
    """

    name: str
    function: Callable
    fixed: dict[str, Any]
    numbers: dict[str, np.float32]


class Method(NamedTuple):
    """What `build_round` takes of a method."""

    server: optax.GradientTransformation
    local: Any
    rule: ccfl.Rule | None
    aggregate: ccfl.Aggregate | None
    upload: optax.GradientTransformation | None


def calls(config: Config, flag: str) -> list[Call]:
    """What a flag names, one after the other; nothing where it is not set."""
    text = getattr(config, flag)
    if text is None:
        return []
    words = expression.split(text, "+ ") if flag in SEVERAL else [text]
    return [_call(flag, word) for word in words]


def _call(flag: str, word: str) -> Call:
    name, values = named(flag, word)
    function = pieces.function(name)
    parameters = inspect.signature(function).parameters
    fixed, numbers = {}, {}
    for argument, value in values.items():
        if argument == "share" and flag == "attack":
            fixed[argument] = value
        elif parameters[argument].annotation is bool and value not in (0, 1):
            raise ValueError(f"--{flag}: expected 0 or 1 for {argument}, found {value:g}")
        elif "Array" in str(parameters[argument].annotation):
            numbers[argument] = np.float32(value)
        elif value == int(value) and parameters[argument].annotation in (int, bool):
            fixed[argument] = parameters[argument].annotation(value)
        else:
            fixed[argument] = value
    return Call(name, function, fixed, numbers)


def numbers(config: Config) -> Numbers:
    """The numbers of the method that are arguments of the compiled round."""
    names = ("local_lr", "server_lr", *SERVERS[config.server])
    found: Numbers = {name: np.float32(getattr(config, name)) for name in names}
    for flag in FORMS:
        own = [call.numbers for call in calls(config, flag)]
        if any(own):
            found[flag] = own
    if config.attack is not None:
        share = calls(config, "attack")[0].fixed["share"]
        try:
            found["attackers"] = systems.chosen(config.num_clients, share, config.seed)
        except ValueError as error:
            raise ValueError(f"--attack: {error}") from None
    return found


def program(config: Config) -> tuple:
    """What else the compiled round depends on, of the flags that `numbers` reads; hashable."""
    every = (
        (flag, call.name, *call.fixed.items()) for flag in FORMS for call in calls(config, flag)
    )
    return config.server, *every


def made(config: Config, numbers: Numbers, task: ccfl.Task | None = None) -> Method:
    """The method with these numbers, which may be traced.

    Args:
        config, numbers: of the run.
        task: that is trained; None leaves out a rule that depends on it.

    Raises:
        ValueError: with the flag, for a number outside its range.
    """
    every = {flag: _named(config, flag, numbers) for flag in FORMS}
    rate = numbers["local_lr"]
    local = every["local"][0](local_lr=rate) if every["local"] else rate
    weights, aggregate, rule = every["weights"], None, None
    if every["rule"] and not (task is None and _rule_of(config) in OF_THE_MODEL):
        known = {"local_lr": rate, "task": task}
        if _rule_of(config) == "fedasync" and weights:
            known["staleness"], weights = _weight(weights.pop()), []
        rule = every["rule"][0](**known)
        rule, aggregate = (rule, None) if isinstance(rule, ccfl.Rule) else rule
    attackers, attack = numbers.get("attackers"), every["attack"]
    upload = _chain(every["upload"])
    rule = rule if upload is None else terms.sending(upload, rule)
    own_server = server(config, numbers)
    for private in every["privacy"]:  # the last that an honest client does to an upload
        known = {"uploads": config.buffer_size, "rounds": config.rounds, "rule": rule}
        rule, aggregate, noise = private(**known)
        own_server = optax.chain(noise, own_server)
    kind = calls(config, "attack")[0].name if attack else None
    if attack and kind not in (*COLLUDING, ON_DATA):
        rule = terms.sending(attack[0](attackers=attackers), rule)
    for weight in weights:
        rule = weight(rule=rule)
    if every["aggregate"]:
        aggregate = every["aggregate"][0]()
    if kind in COLLUDING:
        aggregate = attack[0](attackers=attackers, aggregate=aggregate or ccfl.mean())
    return Method(own_server, local, rule, aggregate, upload)


def poisoned(
    config: Config, numbers: Numbers, data: ccfl.FederatedData, num_classes: int | None
) -> ccfl.FederatedData:
    """The data as clients see them: those of a label flip as `systems.label_flip` makes them.

    It is made within the program: trials share the samples, and each has attackers of its own.
    """
    if config.attack is None or named("attack", config.attack)[0] != ON_DATA:
        return data
    y, rows = data.arrays["y"], data.indices
    attacks = jnp.repeat(numbers["attackers"], data.sizes, total_repeat_length=len(rows))
    flipped = jnp.zeros(len(y), bool).at[rows].set(attacks)
    y = jnp.where(flipped, num_classes - 1 - y, y)
    return dataclasses.replace(data, arrays={**data.arrays, "y": y})


def check(config: Config) -> None:
    """Refuses what cannot be trained, before anything is read: a traced number is not checked.

    Raises:
        ValueError: with the flag, for a number outside its range.
        ImportError: where epsilon is wanted and its accountant is not installed.
    """
    privacy.check(config)
    made(config, numbers(config))


def _named(config: Config, flag: str, numbers: Numbers) -> list[Callable]:
    """The functions of a flag, each with its numbers and as much else as it takes."""

    def taking(call: Call, own: dict[str, Any]) -> Callable:
        def build(**known: Any) -> Any:
            takes = inspect.signature(call.function).parameters
            own_kind = {name: value for name, value in known.items() if name in takes}
            fixed = {name: value for name, value in call.fixed.items() if name in takes}
            try:
                return call.function(**own_kind, **fixed, **own)
            except ValueError as error:
                raise ValueError(f"--{flag}: {error}") from None

        return build

    found = calls(config, flag)
    values = numbers.get(flag, [{}] * len(found))
    return [taking(call, own) for call, own in zip(found, values, strict=True)]


def _weight(weighing: Callable) -> Callable:
    """The weight alone, of a function that weighs a rule's uploads."""
    one = weighing(rule=ccfl.Rule(finish=lambda visit, end: (1.0, ())))

    def weight(visit: ccfl.Visit, end: ccfl.End) -> Array:
        found = one.finish(visit, end)[0]
        return found.weight if isinstance(found, ccfl.Weighted) else found

    return weight


def server(config: Config, numbers: Numbers) -> optax.GradientTransformation:
    """The server optimiser with these numbers."""
    if config.server == "cc_fedavg":
        return ccfl.cc_fedavg()
    hyperparameters = {name: numbers[name] for name in SERVERS[config.server]}
    function = getattr(ccfl, config.server, None) or getattr(systems, config.server)
    return function(numbers["server_lr"], **hyperparameters)


def floor(config: Config, numbers: Numbers) -> Any:
    """Where the root of the server's accumulator is above it the server adapts: eps, or of FedAMS,
    which has it within the root, its root; 0 without one."""
    eps = numbers["eps"] if "eps" in numbers else 0 * numbers["server_lr"]
    return np.sqrt(eps) if config.server == "fedams" else eps


def _chain(upload: list[Callable]) -> optax.GradientTransformation | None:
    """Transformations of an upload, one after the other; its bytes are those of the last."""
    parts = [build() for build in upload]
    if len(parts) < 2:
        return parts[0] if parts else None
    if any(isinstance(part, systems.Compressor) for part in parts[:-1]):
        raise ValueError("--upload: expected at most one compressor, at the end, found another")
    init, update = optax.chain(*parts)
    return systems.Compressor(init, update, partial(systems.bytes_of, parts[-1]))


def own_model(config: Config, task: ccfl.Task) -> Callable | None:
    """`own(params, memory)`, a client's own model; None for a method where they have none."""
    if _rule_of(config) not in PERSONAL:
        return None
    return systems.own_model(made(config, numbers(config), task).rule or ccfl.Rule())


def sent_bytes(config: Config, task: ccfl.Task) -> tuple[int, int]:
    """Bytes that a client sends and receives in a visit of training on `task`."""
    params, rule = jax.eval_shape(task.init, jax.random.key(0)), _rule_of(config)
    if rule in PERSONAL:
        bare = _named(config, "rule", numbers(config))[0](task=task)
        params = personal.shared(bare, params)
    whole, models = systems.bytes_of(None, params), MODELS_SENT.get(rule, 1)
    upload = made(config, numbers(config)).upload
    return systems.bytes_of(upload, params) + (models - 1) * whole, models * whole


def _rule_of(config: Config) -> str:
    """The name of the rule; empty without one."""
    return calls(config, "rule")[0].name if config.rule else ""
