"""Curves of a run, drawn from the rows of its metrics file."""

import os
from collections.abc import Mapping, Sequence
from typing import Any


def draw_curves(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike, title: str) -> None:
    """Draws accuracy and loss against rounds, training and test, as a PNG at `path`.

    Missing values (the training columns of round 0, anything not finite) leave a gap. Needs no
    display. Matplotlib is imported here, so that nothing else waits for it.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    rounds = [row["round"] for row in rows]
    for axes, quantity in zip(figure.subplots(1, 2), ("accuracy", "loss"), strict=True):
        for part in ("train", "test"):
            values = [row[f"{part}_{quantity}"] for row in rows]
            numbers = [float("nan") if value is None else value for value in values]
            axes.plot(rounds, numbers, marker=".", label=part)
        axes.set(xlabel="round", ylabel=quantity)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)
