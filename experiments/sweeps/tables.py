"""Tables of rows as Markdown, CSV and LaTeX."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Rows = Sequence[Mapping[str, Any]]  # column -> value; missing ones are empty

_NAMED = {"~": "asciitilde", "^": "asciicircum", "\\": "backslash"}
_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"} | {c: f"\\text{name}{{}}" for c, name in _NAMED.items()}
)


def as_csv(rows: Rows) -> str:
    """A line for each row below the names of the columns; floats have six digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns(rows))
    writer.writeheader()
    writer.writerows({name: _six_digits(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def as_markdown(rows: Rows) -> str:
    """A Markdown table; a cell is one line."""
    head = _columns(rows)
    lines = [head, ["---"] * len(head), *_cells(rows, head)]
    escaped = ([cell.replace("|", "\\|") for cell in cells] for cells in lines)
    return "".join("| " + " | ".join(cells) + " |\n" for cells in escaped)


def as_latex(rows: Rows) -> str:
    """A tabular with the rules of the package booktabs."""
    head = _columns(rows)
    body = [" & ".join(cell.translate(_LATEX) for cell in cells) for cells in _cells(rows, head)]
    lines = [
        f"\\begin{{tabular}}{{{'l' * len(head)}}}",
        "\\toprule",
        " & ".join(name.translate(_LATEX) for name in head) + " \\\\",
        "\\midrule",
        *(f"{line} \\\\" for line in body),
        "\\bottomrule",
        "\\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


FORMATS: dict[str, Callable[[Rows], str]] = {
    "markdown": as_markdown,
    "csv": as_csv,
    "latex": as_latex,
}


def _columns(rows: Rows) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _cells(rows: Rows, head: Sequence[str]) -> list[list[str]]:
    found = ([row.get(name) for name in head] for row in rows)
    return [["" if v is None else " ".join(f"{_six_digits(v)}".split()) for v in c] for c in found]


def _six_digits(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value
