"""The frame of all commands: help, errors in one line, exit codes."""

import functools
import sys
from collections.abc import Callable

from . import output
from .flag import Table, described

DONE, REFUSED, DIVERGED, FAILED, STOPPED = 0, 2, 3, 4, 5
ERRORS = (ValueError, OSError, ImportError, RuntimeError, MemoryError)

_HELP = {"help", "helpfull", "helpshort", "helpxml", "h", "?"}

Main = Callable[[list[str]], int]


class Stopped(Exception):
    """A signal stopped the command, after it had saved its work."""


def command(name: str, help_text: Callable[[], str]) -> Callable[[Main], Main]:
    """Makes a command of a function of the command line that returns the exit code.

    `--help` prints its help. Printing never fails (`output.steady`). An error of `ERRORS` becomes
    one line after `name` and exit code 2; `Stopped` becomes 5.
    """

    def frame(body: Main) -> Main:
        @functools.wraps(body)
        def main(argv: list[str]) -> int:
            asked = asks_for_help(argv)  # a reader such as `head` may stop reading it
            with output.steady(warns=not asked):
                try:
                    if asked:
                        print(help_text())
                        return DONE
                    return body(argv)
                except Stopped as stopped:
                    print(f"stopped   {stopped}")
                    return STOPPED
                except ERRORS as error:
                    return refused(name, error)

        return main

    return frame


def help_of(about: str, *tables: Table) -> str:
    """The text of `--help`: the command and its usage, then its flags."""
    return "\n".join([about.strip(), *described(*tables)])


def refused(name: str, error: Exception, code: int = REFUSED) -> int:
    """Prints an error in one line; returns the exit code."""
    print(f"{name}: " + " ".join(str(error).split()), file=sys.stderr)
    return code


def asks_for_help(argv: list[str]) -> bool:
    """Whether a command line asks for help, in any usual form."""
    names = (arg.lstrip("-").partition("=")[0] for arg in argv[1:] if arg.startswith("-"))
    return any(name in _HELP for name in names)
