"""schedules/describe.py and figures/schedule_figure.py: what a schedule holds is said and drawn."""

import itertools

import numpy as np
import pytest
from small_runs import SMALL

from ccfl_jax.clock.event_log import USED
from ccfl_jax.schedules.schedule import Schedule
from experiments.config import schedule_flags
from experiments.figures import schedule_figure
from experiments.schedules import describe, make

CLIENTS, ROUNDS, SLOTS = 12, 40, 3


@pytest.fixture(scope="module")
def made():
    line = ["schedule", *SMALL[:4], "--rounds=40", "--step=log_normal(0,1,10)", "--timeout=60"]
    line += ["--max_staleness=3", "--concurrency=6", "--file=x.npz"]
    asked = schedule_flags.parse_schedule(line)
    return make.world(asked.config, asked.options)


@pytest.fixture(scope="module")
def lines(made):
    return describe.describe(made.schedule, CLIENTS, made.log, made.model_bytes, made.steps)


@pytest.fixture(scope="module")
def counts(made):
    """The slots of each client."""
    s = made.schedule
    assert 0 < s.present.sum() < s.present.size  # the time-out leaves slots empty
    return np.bincount(s.client[s.present], minlength=CLIENTS)


def spread(values, text="{:.4g}".format):
    of = np.min(values), np.median(values), np.max(values)
    return "min {}, median {}, max {}".format(*map(text, of))


def test_slots_staleness_clients_and_work(made, lines, counts):
    s, here = made.schedule, made.schedule.present
    stale, work, filled = s.staleness[here], s.work[here], here.sum()
    bars = describe.histogram(np.bincount(stale))
    first = lines.index(f"staleness mean {stale.mean():.4g}, {spread(stale)}")
    assert lines[first + 1 : first + 1 + len(bars)] == bars
    seen = np.count_nonzero(counts)
    assert {*lines} >= {
        f"schedule  {ROUNDS} rounds of {SLOTS} slots for {CLIENTS} clients; {filled} of "
        f"{ROUNDS * SLOTS} slots filled ({100 * here.mean():.4g}%)",
        f"clients   {seen} of {CLIENTS} seen; slots {spread(counts)}",
        f"work      mean {work.mean():.4g} epochs, {spread(work)}",
    }


def test_the_models_of_the_history_and_the_constants_of_the_theorem(made, lines):
    s, here = made.schedule, made.schedule.present
    planned = s.history_slots()
    ring, mb = s.staleness[here].max() + 1, 4 * 650 / 1e6
    rows = [made.steps[t][here[t]].astype(float) for t in range(ROUNDS) if here[t].any()]
    phi = [np.mean([f(k).mean() for k in rows]) for f in (np.copy, np.square, np.reciprocal)]
    phi = ", ".join(f"phi_{k + 1} {value:.4g}" for k, value in enumerate(phi))
    assert {*lines} >= {
        f"history   {planned} models planned, a ring holds {ring} ({planned * mb:.4g} MB instead "
        f"of {ring * mb:.4g} MB)",
        f"theorem   tau_max {ring - 1}, tau_avg {s.staleness[here].mean():.4g}; in local steps "
        f"{phi}",
    }


def test_participation_tasks_and_times(made, lines, counts):
    s, log, here = made.schedule, made.log, made.schedule.present
    share = [np.mean([c in s.client[t][here[t]] for t in range(ROUNDS)]) for c in range(CLIENTS)]
    q, total = here.sum(axis=1) / CLIENTS, counts.sum()
    uniform = total**2 / (CLIENTS * ((q * (1 - q)).sum() + (total / CLIENTS) ** 2))
    assert {*lines} >= {
        f"inclusion {spread(share)} of the rounds; the theorem assumes m/n = 0.25 for all",
        f"effective {total**2 / (counts**2).sum():.4g} clients; uniform cohorts give {uniform:.4g}",
        f"time      {describe.duration(s.time[-1])} in all; a round "
        + spread(np.diff(s.time, prepend=0), describe.duration),
    }
    used, stale, late, rest = ((log.fate == fate).sum() for fate in range(4))
    assert stale > 0
    start = f"tasks     {len(log.client)} started: {used} used, {stale} stale, {late} timed out, "
    mean = describe.duration((log.stop - log.start).mean())
    assert lines[-1].startswith(f"{start}{rest} ")
    assert lines[-1].endswith(f"; {mean} each; 0 starts missed")


def test_a_schedule_without_any_work_is_described_and_drawn(tmp_path):
    for rounds in (0, 4):
        zeros = np.zeros((rounds, 2), np.int32)
        empty = Schedule(zeros, zeros, zeros, zeros > 0, np.zeros(rounds))
        lines = describe.describe(empty, 3)
        assert "work      mean nan units, none" in lines and any("0 of 3 seen" in a for a in lines)
        schedule_figure.draw(empty, 3, tmp_path / "a.png", "a $ b")
        assert (tmp_path / "a.png").stat().st_size > 5000


def test_durations_in_the_unit_of_their_size():
    seconds = [0.25, 119.0, 120.0, 7199.0, 9000.0, 172800.0, 8.64e6]
    texts = ["0.25 s", "119 s", "2 min", "120 min", "2.5 h", "2 days", "100 days"]
    assert [*map(describe.duration, seconds)] == texts


def test_a_histogram_has_lines_that_double_for_a_long_tail_and_counts_everything():
    first, *others = describe.histogram([80, 1, 0, 40])
    assert first == f"        0 {'#' * 40} 80"
    assert others == ["        1 # 1", "        2 0", f"        3 {'#' * 20} 40"]
    assert len(describe.histogram(np.ones(12, int))) == 12
    doubled = [["0", "1"], ["1", "1"], ["2-3", "2"], ["4-7", "4"], ["8-15", "8"]]
    for size, last in ((16, []), (17, [["16", "1"]]), (18, [["16-17", "2"]])):
        lines = describe.histogram(np.ones(size, int))
        assert [line.split()[::2] for line in lines] == doubled + last


def test_uniform_cohorts_by_enumeration():
    """Of 3 clients one, two and four slots: all cohorts there are, in the last one once each, and
    one more."""
    cohorts = (itertools.combinations(range(3), m) for m in (1, 2))
    last = [(0, 1, 2, extra) for extra in range(3)]
    cases = [np.bincount(sum(case, ()), minlength=3) for case in itertools.product(*cohorts, last)]
    found = schedule_figure.uniform_clients(np.array([1, 2, 4]), 3)
    effective = 7**2 / np.mean(np.sum(np.square(cases), axis=1))
    assert found == pytest.approx((np.mean(cases), np.std(cases), effective))
    m, n, total = 2, 7, 2 * 30  # the same m throughout
    expected = n / (1 + (n - m) / total)
    assert schedule_figure.uniform_clients(np.full(30, m), n)[2] == pytest.approx(expected)
    assert schedule_figure.uniform_clients(np.full(5, 7), 7)[1:] == (0.0, 7.0)
    assert np.isnan(schedule_figure.uniform_clients(np.zeros(3, int), 7)[2])


@pytest.fixture
def drawn(made, monkeypatch):
    """`drawn(log)`: the panels of the picture with those tasks, or None."""
    figures = []
    keep = lambda path, write: figures.append(write.func.__self__)  # noqa: E731
    monkeypatch.setattr(schedule_figure, "write_whole", keep)

    def draw(log):
        schedule_figure.draw(made.schedule, CLIENTS, "a.png", "title", log, made.labels)
        return figures[-1].axes

    return draw


def test_the_picture_shows_who_was_active(made, drawn, counts):
    s, log, here = made.schedule, made.log, made.schedule.present
    place, (raster, *_) = np.argsort(np.lexsort((counts, made.labels))), drawn(log)
    assert s.time[-1] > 300 and "(min)" in raster.get_xlabel()
    (gray, bars), used = raster.collections, log.fate == USED
    ends = np.array([[*segment[:, 0], segment[0, 1]] for segment in bars.get_segments()])
    expected = np.array([log.start / 60, log.stop / 60, place[log.client]]).T
    np.testing.assert_allclose(ends, expected[used])
    assert len(gray.get_segments()) == (~used).sum()
    np.testing.assert_array_equal(np.bincount(bars.get_array()), np.bincount(s.staleness[here]))

    (dots,) = drawn(None)[0].collections
    expected = [s.time[np.nonzero(here)[0]] / 60, place[s.client[here]]]
    np.testing.assert_allclose(dots.get_offsets(), np.stack(expected, axis=1))
    np.testing.assert_array_equal(dots.get_array(), s.staleness[here])


@pytest.mark.parametrize("with_log", [True, False])
def test_the_picture_shows_staleness_participation_and_work(made, drawn, counts, with_log):
    s, here, axes = made.schedule, made.schedule.present, drawn(made.log if with_log else None)
    heights = [[bar.get_height() for bar in axes[k].patches] for k in (2, 5)]
    np.testing.assert_array_equal(heights[0], np.bincount(s.staleness[here]))
    np.testing.assert_array_equal(heights[1], np.bincount(s.work[here])[1:])
    level, steps = axes[3].get_lines()
    np.testing.assert_array_equal(steps.get_ydata(), np.sort(counts)[::-1])
    mean, deviation, _ = schedule_figure.uniform_clients(here.sum(axis=1), CLIENTS)
    assert level.get_ydata()[0] == mean
    band = axes[3].patches[0].get_extents().transformed(axes[3].transData.inverted())
    np.testing.assert_allclose([band.y0, band.y1], [mean - 2 * deviation, mean + 2 * deviation])
    assert sum(bar.get_height() for bar in axes[4].patches) == ROUNDS
    (line,) = axes[1].get_lines()
    found = [s.staleness[t][here[t]].mean() for t in range(ROUNDS)]
    np.testing.assert_allclose(line.get_xydata(), np.stack([s.time / 60, found], axis=1))
