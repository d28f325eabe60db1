"""schedules/worlds.py: what is written for a flag is the model, device or trace it names."""

import math

import numpy as np
import pytest
import trace_samples
from problems import assert_trees_equal
from refusal import refused
from small_runs import SMALL

import ccfl_jax as ccfl
from ccfl_jax.clock import availability, event_clock, speed
from ccfl_jax.clock.event_log import EventLog
from ccfl_jax.clock.task_sampling import Work
from experiments.config import schedule_flags
from experiments.schedules import make, worlds
from experiments.training import parts

COUNT, ROUNDS, SECONDS = 12, 200, 1800.0
LABELS = np.arange(COUNT) * 7 % 10
BASE = [*SMALL[:4], "--rounds=30", "--seed=5", "--file=x.npz"]


def asked(*args):
    return schedule_flags.parse_schedule(["schedule", *BASE, *args])


def world(*args):
    one = asked(*args)
    return make.world(one.config, one.options)


def clients_of():
    """The training labels, the clients' rows in them, and their steps of one epoch."""
    train = parts.load("digits", None).train
    rows = parts.clients(asked().config, train)
    return train["y"], rows, np.array([math.ceil(len(own) / 20) for own in rows])


def masks(text):
    model, notes = worlds.availability(text, asked().config, LABELS, 10)
    assert model.num_clients == COUNT
    return np.array(list(availability.masks(model, 5, ROUNDS, SECONDS))), notes


HOURS = np.arange(ROUNDS)[:, None] * SECONDS / 3600  # of each mask
PHASES = np.random.default_rng([5, int.from_bytes(b"PHAS", "big")]).random(COUNT)
ZONES = np.random.default_rng([5, int.from_bytes(b"ZONE", "big")]).integers(0, 24, COUNT)


def diurnal(zones, start, hours):
    return (HOURS + zones - start) % 24 < hours


@pytest.mark.parametrize(("text", "expected"), [
    ("always()", np.full((ROUNDS, COUNT), True)),
    ("cyclic(86400,20000)", (HOURS * 3600 + PHASES * 86400) % 86400 < 20000),
    ("diurnal(20)", diurnal(ZONES, 20, 8)),
    ("diurnal( 1.25, 3.5 )", diurnal(ZONES, 1.25, 3.5)),
    ("label(50000)", np.floor(10 * (HOURS * 3600 % 50000) / 50000) == LABELS),
    ("label_diurnal(22.05,8)", diurnal(2.4 * LABELS, 22.05, 8)),
])  # fmt: skip
def test_clients_are_available_when_the_models_formula_says(text, expected):
    """A label has its part of the period, and a zone of 24 l / 10 hours; 22.05 is off the half
    hours, where rounding decides."""
    np.testing.assert_array_equal(masks(text)[0], expected)


def test_random_models_have_their_share():
    """2400 draws. With e^(-1800 / 750) = 0.09 between rounds a correlated mean's deviation is
    sqrt(p q / 2400 (1 + 2 * 0.09 / 0.91)) < 0.0104: five of them."""
    for text, share in (("bernoulli(0.3,1800)", 0.3), ("markov(1000,3000)", 0.25)):
        assert abs(masks(text)[0].mean() - share) < 5 * 0.0104


@pytest.mark.parametrize("name", ["fedscale", "flash", "csv", "npz"])
def test_a_traces_first_clients_are_taken_and_that_is_said(tmp_path, name):
    path = tmp_path / "a, (b).file"  # commas and parentheses belong to the path
    trace = getattr(trace_samples, f"write_{name}")(path, 3, 20)
    found, notes = masks(f"{name}({path})")
    at, expected = HOURS * 3600 % trace.period, np.zeros((ROUNDS, 20), bool)
    for client, start, stop in zip(*trace[:3], strict=True):
        expected[:, client] |= (start <= at[:, client]) & (at[:, client] < stop)
    np.testing.assert_array_equal(found, expected[:, :COUNT])
    windows = (trace.client < 12).sum()
    assert notes == [f"trace     {path}: the first 12 of 20 clients, {windows} windows"]


def test_availability_that_cannot_be_used(tmp_path):
    path, flag = tmp_path / "a.csv", "--availability"
    for stops, message in (
        ([9] * 11, "at most 11, the clients of the trace, found 12"),
        ([0] * 12 + [1], "one that is ever available, found none in the first 12"),
    ):
        lines = ["client,start,stop,period", *(f"{c},0,{stop},9" for c, stop in enumerate(stops))]
        path.write_text("\n".join(lines))
        refused(f"{flag}=csv({path}): num_clients: expected {message}", masks, f"csv({path})")
    refused(f"{flag}=bernoulli(2,1): p: expected ..., found 2.0", masks, "bernoulli(2,1)")
    with pytest.raises(FileNotFoundError):
        masks(f"npz({path}x)")


@pytest.mark.parametrize(("text", "law"), [  # the others are below, in the clock
    ("half_normal", speed.half_normal()), ("pareto(2,1e-1)", speed.pareto(2.0, 0.1)),
    ("three_classes(2,1,2,3,5,50,80)", speed.three_classes(2.0, speed.LARGE)),
])  # fmt: skip
def test_a_distribution_is_the_one_of_that_name(text, law):
    both = law, worlds.distribution("a", text)
    np.testing.assert_array_equal(*(one(np.random.default_rng([0]), 50) for one in both))


def test_main_labels_are_the_most_frequent_and_of_several_the_lowest():
    labels, starts = np.array([2, 1, 1, 2, 0, 2, 2, 3]), np.array([0, 4, 7, 7, 8])
    np.testing.assert_array_equal(make.main_labels(labels, starts, 4), [1, 2, 0, 3])


def test_papers_rule_is_random_schedule_and_rounds_with_everybody_too():
    made = [world(f"--world={one}") for one in ("paper", "rounds")]
    expected = ccfl.random_schedule(5, 30, COUNT, 3, 5, 3, 2.0)
    for one, time in zip(made, (None, 60.0 * np.arange(1, 31)), strict=True):
        assert_trees_equal(one.schedule, expected.replace(time=time))
        assert (one.schedule.num_clients, one.schedule.work_unit) == (COUNT, "epochs")
        assert one.log is None


def test_rounds_take_those_who_are_available():
    rule = ["--world=rounds", "--availability=label(5000)", "--round_seconds=100"]
    made = world(*rule, "--max_delay=0")
    schedule, labels = made.schedule, made.labels
    part = np.repeat(np.floor(np.arange(30) * 100 * 10 / 5000).astype(int)[:, None], 3, axis=1)
    np.testing.assert_array_equal(labels[schedule.client][schedule.present], part[schedule.present])
    filled = np.minimum((labels == part[:, :1]).sum(axis=1), 3)
    np.testing.assert_array_equal(schedule.present.sum(axis=1), filled)
    assert 0 < filled.sum() < 90 and schedule.staleness.max() == 0


@pytest.mark.parametrize("unit", ["epochs", "steps"])
def test_the_clock_has_the_clients_of_the_run(unit):
    made = world(
        f"--local_{unit}=2", "--step=log_normal(0,0.6,10)", "--download_time=uniform(1,2)",
        "--upload_time=constant(4)", "--task_factor=half_normal(0.1,1)", "--extra=exponential(3)",
        "--concurrency=7", "--start=poisson", "--rate=0.5", "--max_staleness=4", "--timeout=30",
        "--on_timeout=skip", "--work_correlation=-0.5", "--availability=markov(900,300)",
    )  # fmt: skip
    labels, rows, each = clients_of()
    devices = speed.draw_devices(
        5, COUNT, speed.log_normal(0, 0.6, 10), speed.uniform(1, 2), speed.constant(4),
        speed.half_normal(0.1, 1), speed.exponential(3),
    )  # fmt: skip
    there = availability.markov(COUNT, 900.0, 300.0)
    work = Work(2, 2.0, -0.5, each if unit == "epochs" else None)
    server = event_clock.Server(3, 7, "poisson", 0.5, 4, 30.0, "skip")
    schedule, log = event_clock.clock_schedule(5, 30, devices, there, server, work)
    assert made.schedule.digest() == schedule.digest() and made.schedule.work_unit == unit
    assert_trees_equal(made.log, log)
    of = each[schedule.client] if unit == "epochs" else 1
    np.testing.assert_array_equal(made.steps, schedule.present * schedule.work * of)
    main = [np.bincount(labels[own], minlength=10).argmax() for own in rows]
    np.testing.assert_array_equal(made.labels, main)
    assert made.model_bytes == 4 * (64 * 10 + 10)  # logistic regression on 8x8 images


def test_a_files_first_devices_are_taken_and_that_is_said(tmp_path):
    """20 rows a batch, a forward and two backward parts; a model of 2,600 bytes of 8 bits."""
    path = tmp_path / "capacity"
    milliseconds, kilobits = trace_samples.write_capacity(path, 1, 15)
    made = world(f"--capacity={path}", "--extra=constant(0.5)")
    assert made.notes == [f"capacity  {path}: the first 12 of 15 devices"]
    first, log = np.asarray(milliseconds)[made.log.client], made.log
    sent = 2 * 2600 * 8 / 1000 / np.asarray(kilobits)[log.client]
    seconds = log.work * clients_of()[2][log.client] * 3 * 20 * first / 1000 + sent + 0.5
    np.testing.assert_allclose(log.stop - log.start, seconds, rtol=1e-9)
    trace_samples.write_capacity(path, 1, 11)
    message = f"--num_clients: expected at most 11, the devices of {path}, found 12"
    refused(message, world, f"--capacity={path}")


def test_a_log_is_read_back_with_its_own_schedule_alone(tmp_path):
    made, other = (world(f"--seed={seed}") for seed in (0, 1))
    path, log = tmp_path / "a.log.npz", made.log

    def back(**changes):
        log._replace(**changes).save(path)
        return EventLog.load(path)

    found = back()
    assert_trees_equal(found, log)
    assert found.makes(made.schedule)
    assert not found.makes(other.schedule) and not found.makes(made.schedule.replace(time=None))
    assert not back(round=log.round + 1).makes(made.schedule)
    assert not back(round=np.where(log.round >= 0, 0, -1)).makes(made.schedule)
    seconds = np.where(log.start == 0, np.nan, log.stop)
    refused(f"{path}: start, stop: expected finite seconds, found others", back, stop=seconds)
    refused(f"{path}: fate: expected 0 to 3, found others", back, fate=log.fate + 4)
    message = f"{path}: arrays: expected numbers [tasks], missed [], found shapes [...]"
    refused(message, back, client=log.client[1:])
    path.write_text("no npz")
    refused(f"{path}: expected an npz file, found...", EventLog.load, path)
