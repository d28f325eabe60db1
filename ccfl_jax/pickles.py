"""Pickles of plain data: dicts, lists, strings and numbers, and nothing that could run.

A pickle is a program. Here each of its opcodes is looked at before any is carried out.
"""

import io
import pickletools
from pickle import Unpickler, UnpicklingError
from typing import Any

from ccfl_jax.checks import one_line

# What Python writes of dicts, lists, strings and numbers in protocols 2 to 5: no opcode among them
# looks a name up, calls anything, or has a length that could exceed the file.
_PUTS = frozenset(("BINPUT", "LONG_BINPUT", "MEMOIZE"))
_MAKES = frozenset(("EMPTY_DICT", "EMPTY_LIST"))
_ADMITTED = _PUTS | _MAKES | {
    "PROTO", "FRAME", "STOP", "MARK", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "BINGET",
    "LONG_BINGET", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1",
    "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE",
}  # fmt: skip


def read_plain(data: bytes) -> Any:
    """What a pickle holds, if that is made of dicts, lists, strings, numbers, bools and None.

    It takes memory in proportion to its bytes, whatever it says; a part that it has twice, such as
    a list, is one object.

    Raises:
        ValueError: in one line, for any other bytes, and protocols 0 and 1.
    """
    try:
        _check_opcodes(data)
        return _PlainUnpickler(io.BytesIO(data)).load()
    except Exception as error:  # whichever it is, the bytes are no such pickle
        raise ValueError(
            f"pickle: found {one_line(str(error)) or type(error).__name__}, legal: dicts, lists, "
            "strings and numbers, as Python writes them in protocols 2 to 5"
        ) from None


class _PlainUnpickler(Unpickler):
    """Makes what the admitted opcodes make; a second wall behind them."""

    def find_class(self, module: str, name: str) -> Any:
        raise UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise UnpicklingError("it names an object outside of it")


def _check_opcodes(data: bytes) -> None:
    """Refuses what makes anything but dicts, lists, strings and numbers, or far too many."""
    puts = makes = 0
    for opcode, argument, position in pickletools.genops(data):
        if opcode.name not in _ADMITTED:
            raise UnpicklingError(f"{opcode.name} at byte {position}")
        if opcode.name in _PUTS:
            # A number far beyond would make the unpickler allocate as many places.
            if argument is not None and argument > puts:
                raise UnpicklingError(f"memo {argument} after {puts} at byte {position}")
            puts += 1
        makes += opcode.name in _MAKES
    if position + 1 != len(data):
        raise UnpicklingError(f"its end at byte {position + 1} of {len(data)}")
    # An empty dict is one byte here and sixty in memory; a device's has its numbers.
    if makes > 3 + len(data) // 8:
        raise UnpicklingError(f"{makes} dicts and lists in {len(data)} bytes")
