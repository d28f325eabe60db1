"""How the values of flags are read: as others write numbers, and not as Python alone does."""

from collections.abc import Callable
from typing import Any

from absl import flags

# Smaller positive numbers are 0 in float32, or on a device.
_FLOAT32_LEAST = 2.0**-126


def number(text: str) -> float:
    """The number that `text` writes, nan and inf too.

    Raises:
        ValueError: for a text that is none; for a number other than 0 that is 0 in float32.
    """
    value = float(_plain(text))
    if abs(value) < _FLOAT32_LEAST and text.lower().partition("e")[0].strip("+-0. "):
        raise ValueError(f"expected 0, or a number of at least 1.2e-38, found {text!r:.300}")
    return value


def _plain(text: str) -> bytes:
    """`text` without what Python alone takes for a part of a number, as in 1_0 or ٣."""
    return text.encode("ascii").replace(b"_", b" ")


class Number(flags.FloatParser):
    """Of numbers, as `number` reads them."""

    def convert(self, argument: Any) -> float:
        return number(argument) if isinstance(argument, str) else super().convert(argument)


class Whole(flags.IntegerParser):
    """Of integers."""

    def convert(self, argument: Any) -> int:
        return int(_plain(argument)) if isinstance(argument, str) else super().convert(argument)


class SwitchOr(flags.BooleanParser):
    """A switch that may also have one word as its value."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self._word = word

    def parse(self, argument: Any) -> bool | str:
        return argument if argument == self._word else super().parse(argument)


def define(parser: flags.ArgumentParser, is_switch: bool = False) -> Callable[..., Any]:
    """How a flag with this parser is defined, as `Domain` has it."""

    def defined(name: str, default: Any, help: str, flag_values: flags.FlagValues) -> None:
        own = flags.Flag(parser, None, name, default, help, boolean=is_switch)
        flags.DEFINE_flag(own, flag_values)

    return defined
