"""Command lines of the commands with few flags: whatever is wrong with one is said in a line."""

import argparse
import difflib
import re
from collections.abc import Collection
from typing import NoReturn

# What argparse says, and how this house says it.
_TEXTS = (
    (r"argument (\S+): invalid choice: (.*) \(choose from (.*)\)", r"\1: found \2, legal: \3"),
    (r"argument (\S+): invalid (.*) value: (.*)", r"\1: found \3, legal: \2"),
    (r"argument (\S+): expected (.*)", r"\1: found none, legal: \2"),
    (r"argument (\S+): not allowed with argument (\S+)", r"\1: found with \2, legal: one of them"),
    (r"the following arguments are required: (.*)", r"\1: found none, legal: one"),
)


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises ValueError where argparse prints its usage and exits."""

    def error(self, message: str) -> NoReturn:
        for theirs, ours in _TEXTS:
            message = re.sub(f"^{theirs}$", ours, message)
        raise ValueError(message)


def read(
    parser: Parser, argv: list[str], others: Collection[str] = ()
) -> tuple[argparse.Namespace, list[str]]:
    """Reads a command line (`argv[0]` is the program) of flags that are written in full.

    Args:
        parser: of the flags.
        argv: the command line.
        others: names of further flags, which are left unread.

    Returns:
        The parser's own values, and the words it has no use for.

    Raises:
        ValueError: for a flag there is none of, with the nearest one, or a value that is not legal.
    """
    known = [*re.findall(r"--\w+", parser.format_usage()), *(f"--{name}" for name in others)]
    for word in argv[1:]:
        name = word.partition("=")[0]
        if name.startswith("--") and name not in ("--", "--help", *known):
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"{name}: found on the command line, legal: flags of --help{hint}")
    asked, rest = parser.parse_known_args(argv[1:])
    if rest and not others:
        raise ValueError(f"leftover word: found {rest[0]!r:.300}, legal: what --help says")
    return asked, rest
