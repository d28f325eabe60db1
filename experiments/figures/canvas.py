"""Matplotlib's figures, drawn to files: no picture can end a command that has other work.

Matplotlib is imported where something is drawn, as that takes a second.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..config.output import warn


def figure(**options: Any) -> Any:
    """An empty figure, for files alone, whatever backend MPLBACKEND names."""
    backend = os.environ.pop("MPLBACKEND", None)  # perhaps one that is not installed here
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    made = Figure(layout="constrained", **options)
    FigureCanvasAgg(made)
    return made


def text(words: str) -> str:
    """`words` as Matplotlib shows them: a $ begins no formula, and a leading _ hides no label."""
    return (f" {words}" if words.startswith("_") else words).replace("$", r"\$")


def drawn(path: Path, draw: Callable[[], None]) -> bool:
    """Draws a picture of results that are already written; an error is a warning in one line."""
    try:
        draw()
    except Exception as error:  # Matplotlib's, of many kinds
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        warn(f"{path}: expected a picture, found {reason}")
        return False
    return True
