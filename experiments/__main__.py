"""The command `ccfl`: its first word says what it does.

usage: ccfl COMMAND [--FLAG=VALUE ...]
       ccfl COMMAND --help
"""

import importlib
import pkgutil
import sys
from pathlib import Path

from .config import output
from .config.command import DONE, REFUSED, asks_for_help
from .config.flag import nearest


def commands() -> list[str]:
    """The names of the commands: every module beside this one."""
    found = pkgutil.iter_modules([str(Path(__file__).parent)])
    return [one.name for one in found if not (one.ispkg or one.name.startswith("_"))]


def main(argv: list[str] | None = None) -> int:
    """Runs the command line `argv`, by default this process's, and returns the exit code."""
    argv = sys.argv if argv is None else argv
    name, *rest = argv[1:] or ["--help"]
    with output.steady(warns=False):
        if asks_for_help(["ccfl", name]):
            print(_help_text())
            return DONE
        if name not in commands():
            near, words = nearest(name, commands()), ", ".join(commands())
            print(f"ccfl: expected {words}, found {name!r:.300}{near}", file=sys.stderr)
            return REFUSED
    return _module(name).main([name, *rest])


def _help_text() -> str:
    lines = [f"  {name:14} {_module(name).__doc__.splitlines()[0]}" for name in commands()]
    return "\n".join([__doc__.strip(), "", *lines])


def _module(name: str):
    return importlib.import_module(f".{name}", __package__)


if __name__ == "__main__":
    sys.exit(main())
