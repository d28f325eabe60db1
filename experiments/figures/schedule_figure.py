"""The figure of a schedule in six panels."""

import os
from functools import partial
from typing import Any

import numpy as np

from ccfl_jax.clock.event_log import USED, EventLog
from ccfl_jax.io.files import write_whole
from ccfl_jax.schedules.schedule import Schedule

from . import canvas

_MOST_BARS = 20_000  # more tasks are drawn as dots
_BINS, _BLOCKS = 40, 120
_UNITS = (("days", 2 * 86400.0, 86400.0), ("h", 2 * 3600.0, 3600.0), ("min", 300.0, 60.0))


def draw(
    schedule: Schedule,
    num_clients: int,
    path: str | os.PathLike,
    title: str,
    log: EventLog | None = None,
    labels: np.ndarray | None = None,
) -> None:
    """Draws a schedule at `path` as PNG, by its slots with work.

    A raster of the clients' activity (bars from start to upload with a log, else a dot at the end
    of a round), the staleness over time, its histogram, participation against uniform cohorts with
    a band of two standard deviations, the duration of rounds (or their filled slots, where all take
    equally long), and work.

    Args:
        schedule: any; times are in seconds.
        num_clients: n.
        path: of the file, written whole.
        title: above the figure.
        log: the clock's tasks.
        labels: integers `[clients]`, to sort the raster by; without them by slots filled.
    """
    figure = canvas.figure(figsize=(15, 12))
    figure.suptitle(canvas.text(title))
    grid = figure.add_gridspec(3, 3, height_ratios=(1.6, 1, 1))
    panels = [figure.add_subplot(grid[0, :]), figure.add_subplot(grid[1, :2])]
    panels += [figure.add_subplot(grid[place]) for place in ((1, 2), (2, 0), (2, 1), (2, 2))]
    across = _across(schedule)
    _raster(figure, panels[0], schedule, num_clients, across, log, labels)
    _staleness_over_time(panels[1], schedule, across)
    _staleness(panels[2], schedule)
    _participation(panels[3], schedule, num_clients)
    _rounds(panels[4], schedule)
    _work(panels[5], schedule)
    for panel in panels:
        panel.set_axisbelow(True)
        panel.grid(alpha=0.3)
    write_whole(path, partial(figure.savefig, dpi=100, format="png"))


def uniform_clients(filled: np.ndarray, num_clients: int) -> tuple[float, float, float]:
    r"""The expectation for uniform sampling where round t fills m_t slots, N in all, of n clients.

    With cohorts without replacement, c_j, the slots of client j, is a sum of independent indicators
    of probability m_t / n:

    .. math:: E c_j = N / n, \quad V = \sum_t \frac{m_t}{n} (1 - \frac{m_t}{n}), \quad
              n_{eff} \approx \frac{N^2}{n (V + N^2 / n^2)} = \frac{n}{1 + n^2 V / N^2},

    the square of the sum over the expected sum of squares (the expected quotient is a little
    larger). With m_t = m throughout it is n / (1 + (n - m) / N). Where m_t > n, every client has
    floor(m_t / n) slots and the rest is drawn: m_t in V becomes m_t mod n.

    Args:
        filled: integers `[rounds]`, m_t.
        num_clients: n.

    Returns:
        The mean and the standard deviation of c_j, and n_eff; n_eff is nan where N = 0.
    """
    total, share = int(filled.sum()), (filled % num_clients) / num_clients
    variance = float((share * (1.0 - share)).sum())
    effective = (
        num_clients / (1.0 + num_clients**2 * variance / total**2) if total else float("nan")
    )
    return total / num_clients, variance**0.5, effective


def _across(schedule: Schedule) -> tuple[np.ndarray, str, float]:
    """The place of each round on the horizontal axis, the axis's label, and its unit in seconds."""
    if schedule.time is None:
        return np.arange(schedule.num_rounds), "round", 1.0
    unit, length = _unit(schedule.time.max(initial=0.0))
    return schedule.time / length, f"virtual time ({unit})", length


def _unit(seconds: float) -> tuple[str, float]:
    return next(((name, size) for name, from_, size in _UNITS if seconds >= from_), ("s", 1.0))


def _raster(
    figure: Any,
    panel: Any,
    schedule: Schedule,
    num_clients: int,
    across: tuple[np.ndarray, str, float],
    log: EventLog | None,
    labels: np.ndarray | None,
) -> None:
    from matplotlib.colors import PowerNorm

    working = schedule.working()
    visits = np.bincount(schedule.client[working], minlength=num_clients)
    order = np.argsort(visits, kind="stable") if labels is None else np.lexsort((visits, labels))
    place = np.empty(num_clients, int)
    place[order] = np.arange(num_clients)
    x, xlabel, length = across
    # Roots, so that a few very stale slots do not make all others look alike.
    norm = PowerNorm(0.5, 0, max(1, schedule.staleness[working].max(initial=0)))
    thick = float(np.clip(300.0 / num_clients, 0.6, 6.0))  # points, of about 300 in all
    if log is not None and len(log.client) <= _MOST_BARS:
        drawn = _bars(panel, log, place, length, {"cmap": "cool", "norm": norm, "lw": thick})
        what = "a bar from start to upload, gray where it is not used"
    else:
        t = np.nonzero(working)[0]
        drawn = panel.scatter(
            x[t],
            place[schedule.client[working]],
            c=schedule.staleness[working],
            s=min(thick, 500.0 / max(len(x), 1) + 1.0) ** 2,
            cmap="cool",
            norm=norm,
            lw=0,
        )
        what = "a dot for each slot, where its round ends"
    if working.any():
        figure.colorbar(drawn, ax=panel, label="staleness", pad=0.01)
    by = "slots filled" if labels is None else "main label (right), slots filled"
    panel.set(xlabel=xlabel, ylabel=f"client, by {by}", ylim=(-0.7, num_clients - 0.3))
    panel.set_title(f"activity of clients: {what}", fontsize="medium")
    panel.set_xlim(0, max(x.max(initial=0.0), 1e-9) * 1.005)
    _lines_between_labels(panel, labels)


def _bars(
    panel: Any, log: EventLog, place: np.ndarray, length: float, style: dict[str, Any]
) -> Any:
    """A bar for each task from its start to its end; returns those that show staleness."""
    from matplotlib.collections import LineCollection

    used = log.fate == USED
    ends = np.stack([log.start, log.stop], axis=1) / length
    bars = np.stack([ends, np.repeat(place[log.client][:, None], 2, axis=1)], axis=2)
    panel.add_collection(LineCollection(bars[~used], colors="lightgray", lw=style["lw"]))
    return panel.add_collection(
        LineCollection(bars[used], array=(log.round - log.version)[used], **style)
    )


def _lines_between_labels(panel: Any, labels: np.ndarray | None) -> None:
    """Lines where the main label changes, and its number at the right end."""
    if labels is None or len(np.unique(labels)) > 20:
        return
    names, counts = np.unique(labels, return_counts=True)
    ends = np.cumsum(counts)
    for name, count, end in zip(names, counts, ends, strict=True):
        panel.axhline(end - 0.5, color="gray", lw=0.6)
        panel.annotate(
            f"{name}",
            (1.0, end - 0.5 - count / 2),
            xycoords=("axes fraction", "data"),
            xytext=(2, 0),
            textcoords="offset points",
            va="center",
            fontsize="x-small",
        )


def _staleness_over_time(
    panel: Any, schedule: Schedule, across: tuple[np.ndarray, str, float]
) -> None:
    x, xlabel, _ = across
    working, total = schedule.working(), schedule.num_rounds
    size = max(1, -(-total // _BLOCKS))
    rows = []
    for start in range(0, total, size):
        piece = slice(start, start + size)
        values = schedule.staleness[piece][working[piece]]
        if len(values):
            rows.append((x[piece].mean(), values.min(), values.mean(), values.max()))
    if rows:
        middle, least, mean, most = np.array(rows).T
        panel.fill_between(middle, least, most, alpha=0.2, lw=0, label="least to greatest")
        panel.plot(middle, mean, label="mean")
        panel.legend(fontsize="small", framealpha=0.6)
    of = "each round" if size == 1 else f"{size} rounds together"
    highest = max(1.0, schedule.staleness[working].max(initial=0) * 1.05)
    panel.set(xlabel=xlabel, ylabel="staleness", ylim=(0, highest))
    panel.set_title(f"staleness over time, {of}", fontsize="medium")


def _staleness(panel: Any, schedule: Schedule) -> None:
    values = schedule.staleness[schedule.working()]
    _whole_numbers(panel, values)
    if values.max(initial=0) >= _BINS:  # a long tail
        panel.set_yscale("log")
    panel.set(xlabel="staleness", ylabel="slots")
    panel.set_title("staleness of uploads", fontsize="medium")
    if len(values):
        panel.axvline(
            values.mean(), color="black", ls="--", lw=1, label=f"mean {values.mean():.3g}"
        )
        panel.legend(fontsize="small", framealpha=0.6)


def _participation(panel: Any, schedule: Schedule, num_clients: int) -> None:
    working = schedule.working()
    visits = np.bincount(schedule.client[working], minlength=num_clients)
    mean, deviation, expected = uniform_clients(working.sum(axis=1), num_clients)
    effective = visits.sum() ** 2 / max((visits**2).sum(), 1)
    panel.axhspan(
        max(mean - 2 * deviation, 0.0), mean + 2 * deviation, color="tab:orange", alpha=0.25, lw=0
    )
    panel.axhline(
        mean, color="tab:orange", label=f"uniform cohorts, +-2 sigma ({expected:.3g} effective)"
    )
    x = np.arange(num_clients)
    label = f"found ({effective:.3g} effective)"
    panel.step(x, np.sort(visits)[::-1], where="mid", color="tab:blue", label=label)
    panel.set(xlabel="clients, the most frequent first", ylabel="slots", ylim=(0, None))
    panel.set_title("participation", fontsize="medium")
    panel.legend(fontsize="small", framealpha=0.6)


def _rounds(panel: Any, schedule: Schedule) -> None:
    """The duration of rounds; without a clock, or with equal durations, their filled slots."""
    if schedule.time is not None and len(schedule.time):
        each = np.diff(schedule.time, prepend=0.0)
        if np.ptp(each) > 1e-9 * each.max():
            unit, length = _unit(each.max())
            panel.hist(each / length, _BINS)
            panel.set(xlabel=f"from one round to the next ({unit})", ylabel="rounds")
            panel.set_title("buffer fill times", fontsize="medium")
            return
    _whole_numbers(panel, schedule.working().sum(axis=1))
    panel.set(xlabel="slots filled in a round", ylabel="rounds")
    panel.set_title("slots filled a round", fontsize="medium")


def _work(panel: Any, schedule: Schedule) -> None:
    _whole_numbers(panel, schedule.work[schedule.working()])
    panel.set(xlabel=f"work ({schedule.work_unit or 'units'})", ylabel="slots")
    panel.set_title("local work", fontsize="medium")


def _whole_numbers(panel: Any, values: np.ndarray) -> None:
    """A histogram of integers: a bar for each, or for several together."""
    if not len(values):
        return
    width = -(-(int(values.max()) - int(values.min()) + 1) // _BINS)
    edges = np.arange(int(values.min()), int(values.max()) + width + 1, width) - 0.5
    panel.hist(values, edges, rwidth=0.9)
    panel.xaxis.get_major_locator().set_params(integer=True)
    if len(edges) <= 16 and width == 1:
        panel.set_xticks(edges[:-1] + 0.5)
