"""Curves: of one run, of several methods, against a hyperparameter, and over clients."""

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

_COLOURS = 10
_STYLES = ("-", (0, (5, 2)), (0, (5, 2, 1.5, 2)), (0, (2, 3)))  # dashes, in line widths
_WIDEST, _THINNEST, _STEP = 3.6, 1.8, 0.5  # points
_LETTERS = 14  # of a legend's font in an inch
_FEW = 8  # labels that fit below the panels


def draw_curves(rows: Rows, path: str | os.PathLike, title: str) -> None:
    """Draws the score and the loss of one run against rounds, training and test, at `path`.

    Missing values (the training columns of round 0, numbers that are not finite) leave a gap.
    """
    score = metrics.score_name(rows[0])
    panels = [
        (name, {part: [(rows, f"{part}_{name}")] for part in ("train", "test")})
        for name in dict.fromkeys((score, "loss"))
    ]
    draw(panels, [path], title)


def draw_methods(
    methods: Mapping[str, Sequence[Rows]],
    paths: Sequence[str | os.PathLike],
    title: str,
    x: str,
    columns: Sequence[str] = (),
) -> None:
    """Draws columns of several methods, a panel each, with a band over the runs of each method.

    Args:
        methods: label -> the rows of its runs (seeds), with the same evaluations.
        paths: files to write; the ending is the format.
        title: above the figure.
        x: what is on the horizontal axis, one of round, client_updates, samples, bytes,
            virtual_time and seconds; the rows have its columns.
        columns: of the rows; the training and the test score by default.
    """
    panels = [
        (
            column.replace("_", " ", 1),
            {label: [(rows, column) for rows in runs] for label, runs in methods.items()},
        )
        for column in columns or _scores(methods)
    ]
    draw(panels, paths, title, x)


def with_loss(methods: Mapping[str, Sequence[Rows]]) -> list[str]:
    """The columns of the training and the test score, and that of the test loss if it is there."""
    loss = all("test_loss" in row for runs in methods.values() for rows in runs for row in rows)
    return [*dict.fromkeys([*_scores(methods), *(["test_loss"] if loss else [])])]


def _scores(methods: Mapping[str, Sequence[Rows]]) -> list[str]:
    score = metrics.score_name(next(iter(methods.values()))[0][0])
    return [f"train_{score}", f"test_{score}"]


def draw(
    panels: Sequence[tuple[str, Mapping[str, Sequence[tuple[Rows, str]]]]],
    paths: Sequence[str | os.PathLike],
    title: str,
    x: str = "round",
) -> None:
    """Draws panels side by side: (its quantity, label -> runs as (rows, column)).

    A line is the mean over its runs, the band from their smallest to their largest value.
    Horizontal values are means too, as seconds differ between runs. `x`: one of `AXES`. Each line
    is thinner than those before it, and of another style, so that of equal ones all are seen.
    """
    xlabel, columns = AXES[x]
    figure, axes = _figure(len(panels), title)
    seeds = [len(runs) for _, lines in panels for runs in lines.values()]
    for panel, (quantity, lines) in zip(axes, panels, strict=True):
        for k, (label, runs) in enumerate(lines.items()):
            across, values = series(runs, columns)
            mean, look = values.mean(axis=0), _look(k, len(lines))
            (drawn,) = panel.plot(across, mean, label=canvas.text(label), **look)
            if places := _alone(mean):
                drawn.set(marker="o", markevery=places, markersize=2 * look["lw"])
            if len(runs) > 1:
                band = values.min(axis=0), values.max(axis=0)
                panel.fill_between(across, *band, alpha=0.2, color=drawn.get_color(), lw=0)
        panel.set(xlabel=xlabel, ylabel=quantity)
        panel.ticklabel_format(axis="x", scilimits=(-3, 5))
    _save(figure, axes, paths, _range(seeds))


def series(
    runs: Sequence[tuple[Rows, str]], columns: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """The points of a line, up to where the first of its runs ended.

    Args:
        runs: rows and a column of each.
        columns: of the rows, which add up to the horizontal axis.

    Returns:
        Horizontal values `[rows]`, means over the runs, and values `[runs, rows]`, nan where one is
        missing.
    """
    length = min(len(rows) for rows, _ in runs)
    own = [[_column(rows[:length], name) for name in columns] for rows, _ in runs]
    values = np.array([_column(rows[:length], column) for rows, column in runs])
    return np.mean(np.sum(own, axis=1), axis=0), values


def _look(k: int, lines: int) -> dict[str, Any]:
    """Colour, style and width of line `k` of so many: no two of forty are alike."""
    step = min(_STEP, (_WIDEST - _THINNEST) / max(lines - 1, 1))
    width = _THINNEST + step * (lines - 1 - k)
    # Of those that share a colour, the twentieth would have the style of the first.
    style = _STYLES[(k + k // (2 * _COLOURS)) % len(_STYLES)]
    return {"color": f"C{k % _COLOURS}", "ls": style, "lw": width}


def _alone(values: np.ndarray) -> list[int]:
    """The places of numbers between two gaps, of which a line would show nothing."""
    known = np.concatenate([[False], np.isfinite(values), [False]])
    return np.flatnonzero(known[1:-1] & ~known[:-2] & ~known[2:]).tolist()


def _range(seeds: Sequence[int], kind: str = "band") -> str | None:
    """What lines and bands, or bars, are, where a line has several seeds."""
    several = sorted({count for count in seeds if count > 1})
    if not several:
        return None
    count = f"{several[0]} to {several[-1]}" if several[1:] else several[0]
    return f"line: mean over {count} seeds, {kind}: from the smallest to the largest"


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
    seeds = [len(own) for scores in points.values() for own in scores.values()]
    for k, (method, scores) in enumerate(points.items()):
        places = [values.index(value) for value in sorted(scores)]
        runs = np.array([scores[value] for value in sorted(scores)])
        mean = runs.mean(axis=1)
        bars = np.abs(np.stack([runs.min(axis=1), runs.max(axis=1)]) - mean)
        more = {"marker": "o", "capsize": 3, "label": canvas.text(method)}
        panel.errorbar(places, mean, bars, **_look(k, len(points)), **more)
    panel.axhline(np.mean(line[1]), color="gray", linestyle="--", label=canvas.text(line[0]))
    panel.set(xlabel=x, ylabel=y)
    panel.set_xticks(range(len(values)), [f"{value:g}" for value in values])
    _save(figure, [panel], paths, _range(seeds, "bar"))


def draw_fairness(
    scores: Mapping[str, np.ndarray],
    paths: Sequence[str | os.PathLike],
    title: str,
    score: str = "accuracy",
) -> None:
    """Draws the scores of all clients, sorted, and of two runs those of each client.

    The first panel has a line a run, from its worst client to its best. With two runs of as many
    clients there is a second one, a dot a client: above the diagonal the second run serves it
    better, unless the score is a loss or an error.

    Args:
        scores: label -> float `[clients]`, as `ccfl.evaluate_clients` gives them; nan, of a client
            without samples, is left out.
        paths, title: as for `draw_methods`.
        score: the name of the metric.

    Raises:
        ValueError: for scores that are not `[clients]`, or hold no number.
    """
    arrays = {label: np.asarray(values, np.float64) for label, values in scores.items()}
    for label, values in arrays.items():
        if values.ndim != 1 or not np.isfinite(values).any():
            raise ValueError(
                f"scores of {label}: expected numbers [clients], found shape {values.shape} with "
                f"{np.isfinite(values).sum()}"
            )
    are_two = len(arrays) == 2 and len({len(values) for values in arrays.values()}) == 1
    figure, axes = _figure(1 + are_two, title)
    for k, (label, values) in enumerate(arrays.items()):
        known = values[np.isfinite(values)]
        values = metrics.goodness(score, np.sort(metrics.goodness(score, known)))
        share = 100 * (np.arange(len(values)) + 0.5) / len(values)
        axes[0].plot(share, values, label=canvas.text(label), **_look(k, len(arrays)))
    axes[0].set(xlabel="clients, from the worst to the best (%)", ylabel=f"{score} of a client")
    if are_two:
        axes[1].scatter(*arrays.values(), s=18, alpha=0.6, lw=0, color="C2")
        axes[1].axline([np.nanmean([*arrays.values()])] * 2, slope=1, color="gray", lw=1)
        across, up = (canvas.text(f"{score}, {label}") for label in arrays)
        axes[1].set(xlabel=across, ylabel=up, aspect="equal", adjustable="datalim")
    _save(figure, axes, paths)


def _column(rows: Rows, name: str) -> np.ndarray:
    values = (row.get(name) for row in rows)
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _figure(panels: int, title: str) -> tuple[Any, Any]:
    figure = canvas.figure(figsize=(5 * max(panels, 1.4), 4))
    figure.suptitle(canvas.text(title))
    return figure, figure.subplots(1, panels, squeeze=False)[0]


def _save(
    figure: Any, axes: Any, paths: Sequence[str | os.PathLike], explained: str | None = None
) -> None:
    for panel in axes:
        panel.grid(alpha=0.3)
    handles, labels = axes[0].get_legend_handles_labels()
    many = len(labels) > _FEW
    place = {"loc": "outside right center"} if many else {"loc": "outside lower center"}
    width = _LETTERS * figure.get_figwidth() // (max(map(len, labels)) + 10)
    columns = 1 if many else int(np.clip(width, 1, len(labels)))
    style = {"fontsize": "small", "title_fontsize": "small", "handlelength": 3.0}
    figure.legend(handles, labels, **place, ncols=columns, title=explained, **style)
    for path in paths:
        kind = Path(path).suffix.removeprefix(".") or None
        write_whole(path, partial(figure.savefig, dpi=120, format=kind))
