"""Flags: their domains, tables of them, and the parsing of command lines.

A table is a frozen dataclass whose fields are made by `flag`: its attributes are the values, and
all properties of a flag are beside its default. Nothing here imports JAX, so `--help` and errors
come at once.
"""

import dataclasses
import difflib
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from absl import flags

from .parsers import Number, SwitchOr, Whole, define

INT32_MAX = 2**31 - 1
_FLOAT32_MAX = 3.4e38
_PRESETS = Path(__file__).parents[1] / "presets"


class Domain(NamedTuple):
    """The values of a flag.

    Attributes:
        define: absl's function that defines it.
        expected: the values in words.
        holds: whether a value is one of them.
        read: a value as numbers and words, in which values that mean the same are equal.
    """

    define: Callable[..., Any]
    expected: str
    holds: Callable[[Any], bool]
    read: Callable[[Any], Any] = lambda value: value


class Flag(NamedTuple):
    """The properties of a flag.

    Attributes:
        domain: its values.
        default: its value where it is not given.
        help: what it means.
        section: its heading in `--help`.
        may_change: when it may differ at resuming: "never"; "in a run", because it changes no
            round, though perhaps rows; "always", because it changes no result.
        no_use: place -> what to do there instead, for places without a use for the flag.
    """

    domain: Domain
    default: Any
    help: str
    section: str
    may_change: Literal["never", "in a run", "always"] = "never"
    no_use: Mapping[str, str] = {}


class Given(NamedTuple):
    """A parsed command line.

    Attributes:
        values: the value of every flag.
        names: the flags given.
        words: the further arguments.
        written: the flags given on the command line itself, and not in a flag file.
    """

    values: dict[str, Any]
    names: set[str]
    words: list[str]
    written: set[str]


Table = Mapping[str, Flag]


def one_of(*names: str) -> Domain:
    """One of some words."""
    return Domain(flags.DEFINE_string, ", ".join(names), lambda v: v in names)


def whole(least: int, most: int = INT32_MAX) -> Domain:
    """An integer."""
    expected = f"an integer from {least} to {most}"
    return Domain(define(Whole()), expected, lambda v: least <= v <= most)


def switch_or(word: str) -> Domain:
    """A switch, or `word`."""
    expected = f"given, or with `no` before its name, or {word}"
    return Domain(define(SwitchOr(word), is_switch=True), expected, lambda v: True)


PATH = Domain(flags.DEFINE_string, "a path", lambda v: bool(v.strip()))
# Of folders with checkpoints: Orbax writes paths as UTF-8, which lacks what stands for other bytes.
UTF8_PATH = PATH._replace(
    expected="a path in UTF-8",
    holds=lambda v: bool(v.strip()) and not re.search("[\ud800-\udfff]", v),
)
_PATHS = (PATH, UTF8_PATH)
SWITCH = Domain(flags.DEFINE_boolean, "given, or with `no` before its name", lambda v: True)
NAMES = Domain(flags.DEFINE_string, "names, with a comma between two", lambda v: True)
POSITIVE = Domain(define(Number()), "a number > 0, at most 3.4e38", lambda v: 0 < v <= _FLOAT32_MAX)
RATE = Domain(define(Number()), "a number from 0 to 3.4e38", lambda v: 0 <= v <= _FLOAT32_MAX)
SHARE = Domain(define(Number()), "a number > 0 and < 1", lambda v: 0 < v < 1)
DECAY = Domain(define(Number()), "a number from 0 to less than 1", lambda v: 0 <= v < 1)


def flag(domain: Domain, default: Any, help: str, section: str, **more: Any) -> Any:
    """A field of a table: the flag of its name."""
    known = Flag(domain, default, help, section, **more)
    return dataclasses.field(default=default, metadata={"flag": known})


def accept_changed(section: str, **more: Any) -> Any:
    """A field of a table: the flag of that name, with which results are compared."""
    known = "names of provenance.json, as jax,train, whose values may differ between the results"
    return flag(NAMES, "", known, section, **more)


def listed(names: str) -> list[str]:
    """The names with a comma between two."""
    return [name for name in names.split(",") if name]


def table(of: type) -> dict[str, Flag]:
    """The flags of a table by name, in order."""
    return {field.name: field.metadata["flag"] for field in dataclasses.fields(of)}


def read(argv: list[str], *tables: Table, words: str | None = None, least: int = 1) -> Given:
    """Parses a command line; of a flag given twice the last value counts.

    `--preset=NAME` is `--flagfile=` with the preset's path.

    Args:
        argv: the command line; `argv[0]` is the program.
        tables: the flags of the command.
        words: the name of its further arguments; None: it has none.
        least: the least number of those.

    Raises:
        ValueError: one line that names the flag, what is expected and what was found: for an
            unknown flag (in a flag file too), a further argument, or a value outside its domain.
    """
    known = {name: one for part in tables for name, one in part.items()}
    values = flags.FlagValues()
    values.set_gnu_getopt(True)  # flags and words in any order
    for name, one in known.items():
        one.domain.define(name, one.default, one.help, flag_values=values)
    args = _expanded([_flag_file(arg) for arg in argv[1:]], values)
    if any(arg.lstrip("-").split("=")[0] == "undefok" for arg in args):
        raise ValueError("--undefok: expected only flags that --help names, found it")
    try:
        rest = values([argv[0], *args], known_only=True)[1:]
    except (flags.Error, ValueError) as error:
        raise ValueError(_one_line(error, known)) from None
    found = _words(rest, known)
    if words and len(found) < least:
        raise ValueError(f"{words}: expected at least one, found none")
    if found and not words:
        hint = "; switches are written --resume or --noresume" if "alse" in found[0] else ""
        raise ValueError(
            f"leftover word: expected only --flag=value, found {found[0]!r:.300}{hint}"
        )
    given = {name for name in known if values[name].present}
    got = {name: values[name].value for name in known}
    for name, value in got.items():
        domain = known[name].domain
        if (name in given or value is not None) and not domain.holds(value):
            near = _nearest(domain, value)
            raise ValueError(f"--{name}: expected {domain.expected}, found {value!r:.300}{near}")
        if domain in _PATHS and name in given:
            got[name] = os.path.expanduser(value)  # a shell leaves the ~ in --out_dir=~/runs
    words_before = {arg.lstrip("-").partition("=")[0] for arg in argv[1:] if arg.startswith("-")}
    written = {name for name in given if {name, f"no{name}"} & words_before}
    return Given(got, given, found, written)


def made(of: type, given: Given) -> Any:
    """The table `of` with the parsed values."""
    return of(**{field.name: given.values[field.name] for field in dataclasses.fields(of)})


def refuse_useless(place: str, given: Given, known: Table) -> None:
    """Raises ValueError for flags that were given in a place without a use for them."""
    for name in known:
        if name in given.names and place in known[name].no_use:
            instead = known[name].no_use[place]
            raise ValueError(f"--{name}: expected {instead}, found with {place}")


def described(*tables: Table) -> list[str]:
    """Lines with the default, meaning and domain of every flag, by section."""
    lines, section, listed = [], None, {}
    for name, one in ((name, one) for part in tables for name, one in part.items()):
        if one.section != section:
            section = one.section
            lines += ["", f"{section}:"]
        default = "" if one.default is None else f"={one.default}"
        # Without what every number is limited to.
        domain = re.sub(f" to {INT32_MAX}|, at most 3.4e38", "", one.domain.expected)
        expected = "" if one.domain in (*_PATHS, SWITCH) else f" [{domain}]"
        first = listed.setdefault(expected, name)
        if first != name and len(expected) > 100:  # a long list once
            expected = f" [as --{first}]"
        text = f"--{name}{default}: {one.help}{expected}"
        lines.append(textwrap.fill(text, 98, initial_indent="  ", subsequent_indent="      "))
    return lines


def presets() -> list[str]:
    """The names that `--preset` takes."""
    return sorted(path.stem for path in _PRESETS.glob("*.flags"))


def _flag_file(arg: str) -> str:
    """`--flagfile=...` for `--preset=NAME`, any other argument as it is."""
    name, _, value = arg.lstrip("-").partition("=")
    if name != "preset" or not arg.startswith("-"):
        return arg
    if value not in presets():
        near = nearest(value, presets())
        raise ValueError(f"--preset: expected {', '.join(presets())}, found {value!r:.300}{near}")
    return f"--flagfile={_PRESETS / value}.flags"


def _expanded(args: list[str], values: flags.FlagValues) -> list[str]:
    """The arguments with the lines of flag files; ValueError for a line of more than a flag."""
    try:
        lines = values.read_flags_from_files(args)
    except flags.Error as error:
        raise ValueError(f"--flagfile: expected a file of flags, found {error}") from None
    except UnicodeDecodeError as error:
        words = zip(args, [*args[1:], ""], strict=True)  # --flagfile=FILE, or --flagfile FILE
        pairs = [(*arg.lstrip("-").partition("="), after) for arg, after in words]
        files = [value or after for name, _, value, after in pairs if name == "flagfile"]
        raise ValueError(
            f"--flagfile: expected {', '.join(files)}, and files named in it, in UTF-8, found "
            f"{error}"
        ) from None
    for line in lines:
        value = line.partition("=")[2].strip()
        is_more = re.search(r"\s(#|//|--?\w)", line) or re.fullmatch(r"([\"']).*\1", value)
        if is_more and line not in args:
            raise ValueError(
                "--flagfile: expected a flag a line, without quotes or a comment behind it, found "
                f"{line!r:.300}"
            )
    return lines


def _words(rest: list[str], known: Table) -> list[str]:
    """The words among the arguments that are no known flag; ValueError for unknown flags."""
    end = rest.index("--") if "--" in rest else len(rest)
    for arg in rest[:end]:
        if arg.startswith("-") and arg.strip("-"):
            name = repr(arg.partition("=")[0])[1:-1]  # one line, whatever it has
            near = nearest(name, [f"--{one}" for one in known])
            raise ValueError(
                f"{name:.80}: expected a flag that --help names, found an unknown one{near}"
            )
    return [*rest[:end], *rest[end + 1 :]]


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint at the known name most like `word`; empty where none is."""
    near = difflib.get_close_matches(word.strip().lower(), [*known], 1, 0.4)
    return f"; did you mean {near[0]}?" if near else ""


def _nearest(domain: Domain, value: Any) -> str:
    if not isinstance(value, str) or domain in _PATHS:
        return ""
    return nearest(value, domain.expected.split(", "))


def _one_line(error: Exception, known: Table) -> str:
    text = " ".join(str(error).split()).removeprefix("ERROR:: ")
    wrong = re.match(r"flag --(\w+)=(.*?): (expected .*)?", text)
    if wrong:
        name, value, why = wrong.groups()
        if why:
            return f"--{name}: {why}"
        return f"--{name}: expected {known[name].domain.expected}, found {value!r:.300}"
    missing = re.match(r"Missing value for flag -+(\w+)", text)
    if missing:
        return f"--{missing[1]}: expected {known[missing[1]].domain.expected}, found no value"
    switch = re.match(r"--(\w+)=(.*) does not take an argument", text)
    if switch:
        return f"--{switch[1]}: expected no value, found {switch[2]!r:.300}"
    return text
