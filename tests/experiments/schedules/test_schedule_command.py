"""experiments/schedule.py and its figure: a schedule is made, written and shown as it is."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ccfl_jax.clock.event_log import USED
from ccfl_jax.schedules.schedule import Schedule
from experiments import schedule
from experiments.config import command, schedule_flags
from experiments.config.run_flags import RUN
from experiments.figures import schedule_figure
from experiments.schedules import describe, make

ROOT = Path(__file__).parents[3]
BASE = [
    "--dataset=digits",
    "--model=logistic",
    "--num_clients=12",
    "--buffer_size=3",
    "--rounds=40",
    "--step=log_normal(0,1,10)",
]


def run(*args):
    return schedule.main(["schedule", *map(str, args)])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "--file: expected NAME.npz, or --show=NAME.npz, found none"),
        (["--file=a.png"], "--file: expected NAME.npz, other than NAME.log.npz, found 'a.png'"),
        (["--file=a.log.npz"], "--file: expected NAME.npz, other, found 'a.log.npz'"),
        (["--rul=paper"], "--rul: expected flags of --help; did you, found on the command line"),
        (["--rule=papr"], "--rule: expected paper, rounds, clock, found 'papr'; did you mean "
                          "paper?"),
        (["--step=lognormal(1)"],
         "--step: expected constant(value), uniform(low,high), exponential(, found 'lognormal(1)'"),
        (["--task=constant(1,2)"], "--task: expected constant(value), unif, found 'constant(1,2)'"),
        (["--availability=bernoulli(0.5)"],
         "--availability: expected always, bernoulli(p,period), cyclic(, found 'bernoulli(0.5)'"),
        (["--availability=weekly"], "--availability: expected always, bernoulli(p,, found 'weekly'"),
        (["--concurrency=0"], "--concurrency: expected an integer from 1 to , found 0"),
        (["--work_correlation=2"], "--work_correlation: expected a number from -1 to 1, found 2.0"),
        (["--file=a.npz", "--rule=paper", "--availability=always"],
         "--availability: expected with rounds, clock, found with --rule=paper"),
        (["--file=a.npz", "--rule=paper", "--round_seconds=1"],
         "--round_seconds: expected with rounds, found with --rule=paper"),
        (["--file=a.npz", "--rule=rounds", "--step=constant(1)"],
         "--step: expected with clock, found with --rule=rounds"),
        (["--file=a.npz", "--round_seconds=1"],
         "--round_seconds: expected with rounds, found with --rule=clock"),
        (["--file=a.npz", "--max_delay=1"],
         "--max_delay: expected with paper, rounds, found with --rule=clock"),
        (["--file=a.npz", "--rate=1"],
         "--rate: expected none with replace, a number with, found 1.0 with --start=replace"),
        (["--file=a.npz", "--start=poisson"], "--rate: expected , found None with --start=poisson"),
        (["--file=a.npz", "--on_timeout=skip"], "--on_timeout: expected with, found no --timeout"),
        (["--file=a.npz", "--capacity=b", "--download=constant(1)"],
         "--download: expected without, the file says it, found with --capacity"),
        (["--file=a.npz", "--rule=rounds", "--capacity=b"],
         "--capacity: expected with clock, found with --rule=rounds"),
        (["--file=a.npz", "--schedule_file=b"], "--schedule_file: found with a schedule to make"),
        (["--file=a.npz", "--resume"], "--resume: expected --over, found with a schedule to make"),
        (["--file=a.npz", "--dataset=stackoverflow", "--model=tags", "--partition=natural",
          "--data_dir=x", "--availability=label(1)"],
         "--availability: expected a model without, found label with --dataset=stackoverflow"),
        (["--file=a.npz", "--batch_size=0"], "--batch_size: expected an integer, found 0"),
        (["--show=a.npz", "--rule=clock"],
         "--rule: expected --num_clients, --overwrite alone, found with --show"),
        (["--show=a.npz", "--file=b.npz"], "--file: expected , found with --show"),
        (["--show=a.txt"], "--show: expected NAME.npz, found 'a.txt'"),
        (["--show=nowhere.npz"], "schedule file nowhere.npz: No such file or directory"),
        (["--file=a.npz", "--dataset=digits", "--model=mlp", "--step=constant(-1)"],
         "--step=constant(-1): value: expected a finite number >= 0, found -1.0"),
        (["--file=a.npz", "--dataset=digits", "--model=mlp", "--availability=csv(b)"], "b: No suc"),
        (["--file=a.npz", "--dataset=digits", "--model=mlp", "--capacity=b"], "b: No such file"),
        (["--file=a.npz", "--dataset=digits", "--model=mlp", "--max_staleness=0", "--timeout=1e-3",
          "--on_timeout=skip", "--num_clients=5", "--rounds=2", "--step=constant(0.01)",
          "--work_correlation=1", "--availability=cyclic(0.01,0.001)", "--concurrency=1",
          "--start=constant", "--rate=1e-6"], "clock: found no round from second 0 to "),
    ],
)  # fmt: skip
def test_what_is_refused(capsys, tmp_path, monkeypatch, args, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ccfl_jax.clock.event_clock._FRUITLESS", 1000)
    assert run(*args) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and not list(tmp_path.iterdir())
    assert said.err.startswith(f"schedule: {message}")


def test_help_and_wrong_flags_need_no_jax():
    code = (
        "import sys; from experiments import schedule\n"
        "codes = [schedule.main(['schedule', a]) for a in ('--help', '--rule=no', '--file=a')]\n"
        "sys.exit(codes != [0, 2, 2] or 'jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == command.help_of(
        schedule.__doc__, schedule_flags.SCHEDULE
    )
    named = re.findall(r"^  --(\w+)", done.stdout, re.MULTILINE)
    assert named == list(schedule_flags.SCHEDULE) and max(map(len, done.stdout.splitlines())) <= 100
    assert {*named} & RUN.keys() == {"overwrite"}


@pytest.mark.parametrize("name", ["digits", "synthetic", "fmnist_cnn"])
def test_presets_are_words_of_the_command(name):
    """Training's words too, as the last one's max_delay; a server rate is not needed."""
    line = [f"--flagfile={ROOT}/experiments/presets/{name}.flags", "--file=a{seed}.npz", "--seed=7"]
    asked = schedule_flags.parse_schedule(["schedule", *line])
    assert asked.file == Path("a7.npz") and asked.options.rule == "clock"
    assert not hasattr(asked.options, "max_delay")


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def arrays(path):
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def test_the_same_command_writes_the_same_files_and_shows_what_it_wrote(tmp_path, capsys):
    line = [*BASE, "--seed=3", "--availability=label_diurnal"]
    for name in ("a", "b"):
        assert run(*line, f"--file={tmp_path}/{name}/s{{seed}}.npz") == 0
    out = capsys.readouterr().out.splitlines()
    made, again = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert [*made] == ["s3.log.npz", "s3.npz", "s3.png"] and made["s3.png"][:4] == b"\x89PNG"
    assert made == again
    file = tmp_path / "a" / "s3.npz"
    written = [line for line in out if line.startswith("written")]
    assert written[:3] == [f"written   {path}" for path in make.files(file)]

    assert run(f"--show={file}") == 0  # its picture is there
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == f"picture   {file.with_suffix('.png')} was there; --overwrite draws it anew"
    different = {a[:9] for a, b in zip(shown[:-1], out, strict=False) if a != b}
    assert different == {"history  ", "theorem  "}  # megabytes, and steps, that need the data
    file.with_suffix(".png").unlink()
    assert run(f"--show={file}", "--num_clients=12") == 0
    assert file.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"
    assert contents(tmp_path / "a") != made  # sorted by another key
    assert capsys.readouterr().out.splitlines()[-1] == f"written   {file.with_suffix('.png')}"
    assert run(f"--show={file}", "--num_clients=11") == 2
    assert "made for 12 clients, legal: one made for 11" in capsys.readouterr().err


def test_files_that_are_there_are_kept_unless_they_may_go(tmp_path, capsys):
    file = tmp_path / "a.npz"
    for there in make.files(file):
        there.write_bytes(b"mine")
        assert run(*BASE, f"--file={file}") == 2
        expected = f"schedule: {there}: expected a new name, or --overwrite\n, found a file"
        assert capsys.readouterr().err == expected and there.read_bytes() == b"mine"
        there.unlink()
    assert run(*BASE, f"--file={file}") == 0
    clock = arrays(file)
    assert run(*BASE[:-1], "--rule=paper", f"--file={file}", "--overwrite") == 0
    assert [*contents(tmp_path)] == ["a.npz", "a.png"]  # no log of another schedule stays
    assert not np.array_equal(arrays(file)["client"], clock["client"]) and "time" in clock
    assert "time      no clock" in capsys.readouterr().out


@pytest.fixture(scope="module")
def made():
    line = [*BASE, "--file=x.npz", "--timeout=60", "--max_staleness=3", "--concurrency=6"]
    asked = schedule_flags.parse_schedule(["schedule", *line])
    return make.world(asked.config, asked.options)


def number(lines, name, pattern):
    """The numbers that a line says."""
    (line,) = [line for line in lines if line.startswith(f"{name:<10}")]
    return [float(word) for word in re.search(pattern, line).groups()]


N = r"([-+.\de]+)"
SPREAD = f"min {N}, median {N}, max {N}"


def spread(values):
    return [np.min(values), np.median(values), np.max(values)]


def test_what_is_said_is_what_the_schedule_holds(made):
    s, log = made.schedule, made.log
    lines = describe.describe(s, 12, log, made.model_bytes, made.steps)
    here, stale = s.present, s.staleness[s.present]
    assert 0 < here.sum() < here.size  # the time-out leaves slots empty
    counts = np.array([np.sum(s.client[here] == c) for c in range(12)])
    found = {
        "schedule": (f"{N} rounds of {N} slots for {N} clients; {N} of {N} slots filled \\({N}%",
                     [40, 3, 12, here.sum(), 120, here.mean() * 100]),
        "staleness": (f"mean {N}, {SPREAD}", [stale.mean(), *spread(stale)]),
        "clients": (f"{N} of {N} seen; slots {SPREAD}", [(counts > 0).sum(), 12, *spread(counts)]),
        "work": (f"mean {N} epochs, {SPREAD}", [s.work[here].mean(), *spread(s.work[here])]),
    }  # fmt: skip
    kept = set()  # (model, round) of each model that is still read
    for t, k in zip(*np.nonzero(here), strict=True):
        kept |= {(t - s.staleness[t, k], u) for u in range(t - s.staleness[t, k], t + 1)}
    planned = max(sum(1 for _, u in kept if u == t) for t in range(40))
    ring, mb = stale.max() + 1, 4 * 650 / 1e6
    found["history"] = (
        f"{N} models planned, a ring holds {N} \\({N} MB instead of {N} MB\\)",
        [planned, ring, planned * mb, ring * mb],
    )
    rows = [made.steps[t][here[t]].astype(float) for t in range(40) if here[t].any()]
    phi = [np.mean([f(k).mean() for k in rows]) for f in (np.copy, np.square, np.reciprocal)]
    found["theorem"] = (
        f"tau_max {N}, tau_avg {N}; in local steps phi_1 {N}, phi_2 {N}, phi_3 {N}",
        [ring - 1, stale.mean(), *phi],
    )
    share = [np.mean([c in s.client[t][here[t]] for t in range(40)]) for c in range(12)]
    found["inclusion"] = f"{SPREAD} of the rounds; .* m/n = {N} for", [*spread(share), 3 / 12]
    q = here.sum(axis=1) % 12 / 12
    effective = counts.sum() ** 2 / (12 * ((q * (1 - q)).sum() + (counts.sum() / 12) ** 2))
    found["effective"] = (
        f"{N} clients; uniform cohorts give {N}",
        [counts.sum() ** 2 / (counts**2).sum(), effective],
    )
    fates = [(log.fate == fate).sum() for fate in range(4)]
    assert fates[1] > 0
    found["tasks"] = (
        f"{N} started: {N} used, {N} stale, {N} timed out, {N} under way; .* each; {N} starts",
        [len(log.client), *fates, 0],
    )
    for name, (pattern, values) in found.items():
        np.testing.assert_allclose(number(lines, name, pattern), values, rtol=1e-3, err_msg=name)
    each = map(describe.duration, spread(np.diff(s.time, prepend=0)))
    (line,) = [line for line in lines if line.startswith("time")]
    words = "min {}, median {}, max {}".format(*each)
    assert line == f"time      {describe.duration(s.time[-1])} in all; a round {words}"
    bars = [re.fullmatch(r" +(\d+) #+ (\d+)| +(\d+) 0", line) for line in lines]
    bars = [(int(b[1] or b[3]), int(b[2] or 0)) for b in bars if b]
    assert bars == [(k, np.sum(stale == k)) for k in range(ring)]
    assert f"{describe.duration((log.stop - log.start).mean())} each" in lines[-1]


def test_a_schedule_without_any_work_is_described_and_drawn(tmp_path):
    for rounds in (0, 4):
        zeros = np.zeros((rounds, 2), np.int32)
        empty = Schedule(zeros, zeros, zeros, zeros > 0, np.zeros(rounds))
        lines = describe.describe(empty, 3)
        assert "work      mean nan units, none" in lines and any("0 of 3 seen" in a for a in lines)
        schedule_figure.draw(empty, 3, tmp_path / "a.png", "a $ b")
        assert (tmp_path / "a.png").stat().st_size > 5000


def test_uniform_cohorts_by_enumeration():
    """Of 3 clients one, two and four slots: all cohorts there are, in the last one once each, and
    one more."""
    first, second = list(itertools.combinations(range(3), 1)), itertools.combinations(range(3), 2)
    last = [(0, 1, 2, extra) for extra in range(3)]
    cases = [
        np.bincount(sum(case, ()), minlength=3)
        for case in itertools.product(first, list(second), last)
    ]
    mean, deviation, effective = schedule_figure.uniform_clients(np.array([1, 2, 4]), 3)
    assert mean == pytest.approx(np.mean(cases)) and deviation == pytest.approx(np.std(cases))
    assert effective == pytest.approx(7**2 / np.mean(np.sum(np.square(cases), axis=1)))
    m, n, total = 2, 7, 2 * 30  # the same m throughout
    expected = n / (1 + (n - m) / total)
    assert schedule_figure.uniform_clients(np.full(30, m), n)[2] == pytest.approx(expected)
    assert schedule_figure.uniform_clients(np.full(5, 7), 7)[1:] == (0.0, 7.0)
    assert np.isnan(schedule_figure.uniform_clients(np.zeros(3, int), 7)[2])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "0.25 s"), (119.0, "119 s"), (120.0, "2 min"), (7199.0, "120 min"), (9000.0, "2.5 h"),
     (172800.0, "2 days"), (8.64e6, "100 days")],
)  # fmt: skip
def test_durations(seconds, text):
    assert describe.duration(seconds) == text


def test_a_histogram_has_lines_that_double_for_a_long_tail_and_counts_everything():
    lines = describe.histogram([80, 1, 0, 40])
    assert lines == [f"        0 {'#' * 40} 80", "        1 # 1", "        2 0",
                     f"        3 {'#' * 20} 40"]  # fmt: skip
    assert len(describe.histogram(np.ones(12, int))) == 12
    lines = [line.split()[::2] for line in describe.histogram(np.ones(18, int))]
    assert lines == [["0", "1"], ["1", "1"], ["2-3", "2"], ["4-7", "4"], ["8-15", "8"],
                     ["16-17", "2"]]  # fmt: skip
    assert describe.histogram(np.ones(17, int))[-1].split()[::2] == ["16", "1"]
    assert describe.histogram(np.ones(16, int))[-1].split()[::2] == ["8-15", "8"]


def figure_of(monkeypatch, *args):
    drawn = []
    monkeypatch.setattr(
        schedule_figure, "write_whole", lambda path, write: drawn.append(write.func)
    )
    schedule_figure.draw(*args)
    return drawn[0].__self__.axes


@pytest.mark.parametrize("with_log", [True, False])
def test_the_picture_shows_the_schedule(made, monkeypatch, with_log):
    s, log, labels = made.schedule, made.log if with_log else None, made.labels
    axes = figure_of(monkeypatch, s, 12, "a.png", "title", log, labels)
    here, minutes = s.present, 60.0
    counts = np.bincount(s.client[here], minlength=12)
    place = np.argsort(np.lexsort((counts, labels)))
    assert s.time[-1] > 300 and "(min)" in axes[0].get_xlabel()
    if with_log:
        gray, bars = axes[0].collections
        used = made.log.fate == USED
        ends = np.array([[*segment[:, 0], segment[0, 1]] for segment in bars.get_segments()])
        expected = [made.log.start / minutes, made.log.stop / minutes, place[made.log.client]]
        np.testing.assert_allclose(ends, np.array(expected).T[used])
        assert len(gray.get_segments()) == (~used).sum()
        np.testing.assert_array_equal(np.bincount(bars.get_array()), np.bincount(s.staleness[here]))
    else:
        (dots,) = axes[0].collections
        rows = np.nonzero(here)[0]
        expected = np.stack([s.time[rows] / minutes, place[s.client[here]]], axis=1)
        np.testing.assert_allclose(dots.get_offsets(), expected)
        np.testing.assert_array_equal(dots.get_array(), s.staleness[here])
    heights = [[bar.get_height() for bar in axes[k].patches] for k in (2, 5)]
    np.testing.assert_array_equal(heights[0], np.bincount(s.staleness[here]))
    np.testing.assert_array_equal(heights[1], np.bincount(s.work[here])[1:])
    level, steps = axes[3].get_lines()
    np.testing.assert_array_equal(steps.get_ydata(), np.sort(counts)[::-1])
    mean, deviation, _ = schedule_figure.uniform_clients(here.sum(axis=1), 12)
    assert level.get_ydata()[0] == mean
    band = axes[3].patches[0].get_extents().transformed(axes[3].transData.inverted())
    np.testing.assert_allclose([band.y0, band.y1], [mean - 2 * deviation, mean + 2 * deviation])
    assert sum(bar.get_height() for bar in axes[4].patches) == 40
    (line,) = axes[1].get_lines()
    found = [s.staleness[t][here[t]].mean() for t in range(40)]
    np.testing.assert_allclose(line.get_xydata(), np.stack([s.time / minutes, found], axis=1))
