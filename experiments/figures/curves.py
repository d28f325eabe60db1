"""Curves: of one run, of several methods, and against a hyperparameter."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ccfl_jax.io.files import write_whole
from ccfl_jax.runs import metrics

from ..config.plot_flags import AXES
from . import canvas

Rows = Sequence[Mapping[str, Any]]

_COLOURS, _STYLES = 10, ("-", "--", ":", "-.")  # lines after the tenth have other styles
_FEW = 8  # labels that fit into a panel


def draw_curves(rows: Rows, path: str | os.PathLike, title: str) -> None:
    """Draws the score and the loss of one run against rounds, training and test, at `path`.

    Missing values (the training columns of round 0, numbers that are not finite) leave a gap.
    """
    score = metrics.score_name(rows[0])
    panels = [
        (name, {part: [(rows, f"{part}_{name}")] for part in ("train", "test")})
        for name in (score, "loss")
    ]
    draw(panels, [path], title)


def draw_methods(
    methods: Mapping[str, Sequence[Rows]], paths: Sequence[str | os.PathLike], title: str, x: str
) -> None:
    """Draws the training and the test score of several methods, a band over the runs of each.

    Args:
        methods: label -> the rows of its runs (seeds), with the same evaluations.
        paths: files to write; the ending is the format.
        title: above the figure.
        x: what is on the horizontal axis, one of `AXES`; the rows have its columns.
    """
    score = metrics.score_name(next(iter(methods.values()))[0][0])
    panels = [
        (
            f"{part} {score}",
            {
                label: [(rows, f"{part}_{score}") for rows in runs]
                for label, runs in methods.items()
            },
        )
        for part in ("train", "test")
    ]
    draw(panels, paths, title, x)


def draw(
    panels: Sequence[tuple[str, Mapping[str, Sequence[tuple[Rows, str]]]]],
    paths: Sequence[str | os.PathLike],
    title: str,
    x: str = "round",
) -> None:
    """Draws panels side by side: (its quantity, label -> runs as (rows, column)).

    A line is the mean over its runs, the band from their smallest to their largest value.
    Horizontal values are means too, as seconds differ between runs. `x`: one of `AXES`.
    """
    xlabel, columns = AXES[x]
    figure, axes = _figure(len(panels), title)
    for panel, (quantity, lines) in zip(axes, panels, strict=True):
        for k, (label, runs) in enumerate(lines.items()):
            length = min(len(rows) for rows, _ in runs)
            own = [[_column(rows[:length], name) for name in columns] for rows, _ in runs]
            across = np.mean(np.sum(own, axis=1), axis=0)
            values = np.array([_column(rows[:length], column) for rows, column in runs])
            style = _STYLES[k // _COLOURS % len(_STYLES)]
            mean = values.mean(axis=0)
            (drawn,) = panel.plot(across, mean, style, marker=".", label=canvas.text(label))
            if len(runs) > 1:
                band = values.min(axis=0), values.max(axis=0)
                panel.fill_between(across, *band, alpha=0.2, color=drawn.get_color(), lw=0)
        panel.set(xlabel=xlabel, ylabel=quantity)
        panel.ticklabel_format(axis="x", scilimits=(-3, 5))
    _save(figure, axes, paths)


def draw_sensitivity(
    points: Mapping[str, Mapping[float, Sequence[float]]],
    line: tuple[str, Sequence[float]],
    paths: Sequence[str | os.PathLike],
    title: str,
    x: str,
    y: str,
) -> None:
    """Draws a score against a hyperparameter, its values evenly spaced, a line for the baseline.

    Args:
        points: method -> value -> its scores, one a seed; bars from the smallest to the largest.
        line: label and scores of the method without that hyperparameter.
        paths, title: as for `draw_methods`.
        x, y: what the axes show.
    """
    figure, (panel,) = _figure(1, title)
    values = sorted({value for scores in points.values() for value in scores})
    for method, scores in points.items():
        places = [values.index(value) for value in sorted(scores)]
        runs = np.array([scores[value] for value in sorted(scores)])
        mean = runs.mean(axis=1)
        bars = np.abs(np.stack([runs.min(axis=1), runs.max(axis=1)]) - mean)
        panel.errorbar(places, mean, bars, marker="o", capsize=3, label=canvas.text(method))
    panel.axhline(np.mean(line[1]), color="gray", linestyle="--", label=canvas.text(line[0]))
    panel.set(xlabel=x, ylabel=y)
    panel.set_xticks(range(len(values)), [f"{value:g}" for value in values])
    _save(figure, [panel], paths)


def _column(rows: Rows, name: str) -> np.ndarray:
    return np.array([np.nan if row[name] is None else row[name] for row in rows], np.float64)


def _figure(panels: int, title: str) -> tuple[Any, Any]:
    figure = canvas.figure(figsize=(5 * max(panels, 1.4), 4))
    figure.suptitle(canvas.text(title))
    return figure, figure.subplots(1, panels, squeeze=False)[0]


def _save(figure: Any, axes: Any, paths: Sequence[str | os.PathLike]) -> None:
    for panel in axes:
        panel.grid(alpha=0.3)
    handles, labels = axes[0].get_legend_handles_labels()
    if len(labels) > _FEW:  # beside the panels, once
        figure.legend(handles, labels, fontsize="small", loc="outside right center")
    else:
        for panel in axes:
            panel.legend(fontsize="small", framealpha=0.6)
    for path in paths:
        kind = Path(path).suffix.removeprefix(".") or None
        write_whole(path, partial(figure.savefig, dpi=120, format=kind))
