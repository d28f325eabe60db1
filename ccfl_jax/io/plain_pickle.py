"""Pickles of plain data: dicts, lists, strings and numbers, and nothing that could run."""

import io
from pickle import Unpickler, UnpicklingError  # noqa: S403, made to look nothing up
from types import NoneType
from typing import Any

from ccfl_jax.checks import one_line

_PLAIN = {dict, list, str, int, float, bool, NoneType}


class _PlainUnpickler(Unpickler):  # noqa: S301, as above
    """The restricted unpickler of Python's documentation, without any class."""

    def find_class(self, module: str, name: str) -> Any:
        raise UnpicklingError(f"the name {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise UnpicklingError("a name of an object outside of it")


def read_plain(data: bytes) -> Any:
    """The value of a pickle of dicts, lists, strings, numbers, bools and None.

    A part that occurs several times, such as a list, is one object.

    Raises:
        ValueError: in one line, for any other bytes.
    """
    try:
        value = _PlainUnpickler(io.BytesIO(data)).load()
        _check_plain(value)
    except Exception as error:  # damaged pickles raise many kinds
        raise ValueError(
            "pickle: expected dicts, lists, strings and numbers, found "
            f"{one_line(str(error)) or type(error).__name__}"
        ) from None
    return value


def _check_plain(value: Any) -> None:
    parts, seen = [[value]], set()
    for part in parts:  # grows in the loop
        if id(part) in seen:
            continue
        seen.add(id(part))
        inside = [*part, *part.values()] if isinstance(part, dict) else part
        kinds = {*map(type, inside)}
        if kinds - _PLAIN:
            raise UnpicklingError(f"a {(kinds - _PLAIN).pop().__name__}")
        if kinds & {dict, list}:
            parts += [one for one in inside if isinstance(one, dict | list)]
