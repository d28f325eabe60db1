"""A page of runs as one HTML file: tables written here, curves and schedules drawn by its scripts.

Its style and its scripts are the files beside this one. What a user has named is escaped, and the
page's own policy forbids it to load anything.
"""

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from . import content, visits
from .content import Group

_HERE = Path(__file__).parent
_SCRIPTS = ("curves.js", "table.js", "schedule.js")


def page(folders: Mapping[Path, str]) -> str:
    """The page of some folders, as `content.folders` finds them.

    Raises:
        OSError, ValueError: for a folder that holds no results, or a file that cannot be read.
    """
    groups = content.groups(folders)
    data = {"curves": content.curves_of(groups), "schedules": visits.of_groups(groups)}
    origins = content.origins(folders)
    parts = {
        "title": _text(", ".join(folders.values())),
        "style": _file("page.css"),
        "results": _results(groups),
        "settings": "".join(_details(name, own) for name, own in _settings(groups)),
        "origins": "".join(_details(name, own) for name, own in origins.items()),
        "data": _json(data),
        "scripts": "\n".join(map(_file, _SCRIPTS)),
    }
    return Template(_file("page.html")).substitute(parts)


def _file(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _results(groups: Sequence[Group]) -> str:
    """The tables of all groups as one."""
    several = len(groups) > 1
    rows = [
        {**({"folder": group.name} if several else {}), **row}
        for group in groups
        for row in group.rows
    ]
    head = [*dict.fromkeys(name for row in rows for name in row)]
    cells = ([row.get(name, "") for name in head] for row in rows)
    return _table("results", "Results", head, cells)


def _table(name: str, caption: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table; its heads are buttons where a script sorts it."""
    titles = "".join(f'<th scope="col">{_text(one)}</th>' for one in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>\n" for row in rows
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{_text(caption)}">'
        f'<table id="{name}"><thead><tr>{titles}</tr></thead>\n'
        f"<tbody>\n{body}</tbody></table></div>"
    )


def _settings(groups: Sequence[Group]) -> Iterable[tuple[str, dict[str, Any]]]:
    """The name of each line, and its settings."""
    for group in groups:
        for label, line in zip(group.labels, group.lines, strict=True):
            name = label if len(groups) == 1 else f"{group.name}: {label}"
            own = {n: value for n, value in line.config.items() if n != "environment"}
            unset = [n for n, value in own.items() if value is None]
            set_ones = {n: value for n, value in own.items() if value is not None}
            yield name, set_ones | ({"unset": ", ".join(unset)} if unset else {})


def _details(name: str, values: Mapping[str, Any]) -> str:
    """Names and values that are shown on demand."""
    rows = "".join(
        f'<tr><th scope="row">{_text(key)}</th><td>{_text(value)}</td></tr>\n'
        for key, value in values.items()
    )
    shown = f'<table class="pairs"><tbody>\n{rows}</tbody></table>' if rows else "<p>none kept</p>"
    return f"<details><summary>{_text(name)}</summary>{shown}</details>\n"


def _text(value: Any) -> str:
    """A value as text of the page, with \\xfc or the like for what UTF-8 lacks."""
    return html.escape(f"{value}".encode("utf-8", "backslashreplace").decode())


def _json(data: Any) -> str:
    """JSON that cannot end the element that holds it."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
