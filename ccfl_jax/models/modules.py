"""What modules of Linen and of NNX have in common."""

import inspect
from collections.abc import Sequence
from typing import Any

# The arguments by which a model may be told that it trains.
_SWITCHES = {"train": True, "training": True, "is_training": True, "deterministic": False}
TOLD = f"a model is told that it trains by {', '.join(_SWITCHES)}"


def switches(model: Any, train: bool) -> dict[str, Any]:
    """The arguments by which a module is told whether it trains."""
    known = inspect.signature(type(model).__call__).parameters
    return {name: value == train for name, value in _SWITCHES.items() if name in known}


def rate(layer: Any) -> str:
    """The attribute of a layer that drops which holds its rate."""
    return "rate" if hasattr(layer, "rate") else "dropout_rate"


def named(path: Sequence, layer: Any) -> str:
    """A layer that drops, for a message."""
    name = "/".join(map(str, path)) or type(layer).__name__
    return f"{name} of rate {getattr(layer, rate(layer)):g}"


def refuse_statistics(found: list[str]) -> None:
    """Raises ValueError for kinds of variables beside the parameters."""
    if found:
        raise ValueError(
            "model: expected parameters only; statistics have no meaning between stale clients, "
            f"use GroupNorm instead of BatchNorm, found {', '.join(found)} beside its parameters"
        )
