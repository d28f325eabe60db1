"""Folders of a run, a sweep and a comparison, written and not trained, for the tests of pages."""

import json
import re

import numpy as np
from plots import rows, write_rows

import ccfl_jax as ccfl
from ccfl_jax.io.files import replace_file
from ccfl_jax.runs import metrics, run_config
from experiments import report
from experiments.config.sweep_flags import name_of
from experiments.sweeps import results

_ENVIRONMENT = {"devices": 2, "device": "cpu", "date": "2026-11-30"}
SCORES = {"a": [0.125, 0.5, 0.75], "b": [0.125, 0.625, None]}
_FULL = ccfl.random_schedule(3, 20, 6, buffer_size=2, max_delay=4)
# Some slots are empty, others without work.
_PRESENT = np.arange(40).reshape(20, 2) % 7 > 0
SCHEDULE = _FULL.replace(present=_PRESENT, work=_FULL.work * (np.arange(40).reshape(20, 2) % 9 > 0))


def make_run(folder, scores, **settings):
    """A run of 20 rounds, evaluated before them, after ten and at the end."""
    own = rows(scores)
    if None in scores:
        own[-1] |= {"diverged": True, "diverged_at": 17}
    write_rows(folder, own)
    config = {"server": "cc_fedams", "server_lr": 0.1, "seed": 0, "environment": _ENVIRONMENT}
    replace_file(folder / run_config.CONFIG, json.dumps(config | settings))
    SCHEDULE.save(folder / metrics.SCHEDULE)
    return folder


def make_runs(place):
    """Those of `SCORES`; they differ in alpha."""
    every = zip(SCORES.items(), (0.25, 4.0), strict=True)
    return [make_run(place / name, scores, alpha=alpha) for (name, scores), alpha in every]


def make_sweep(folder, scores, **settings):
    """server_lr -> the test scores of each seed."""
    for rate, seeds in scores.items():
        for seed, own in enumerate(seeds):
            varied = {"server_lr": str(rate), "seed": str(seed)}
            config = {"server": "cc_fedams", "server_lr": rate, "seed": seed, **settings}
            record = results.Record(name_of(varied), varied, "finished", None, config, rows(own))
            results.write(folder, record)
    return folder


def written(place, *folders):
    """The page of some folders: its file."""
    path = place / "page.html"
    assert report.main(["report", *map(str, folders), f"--out={path}"]) == 0
    return path


def data_of(page):
    """What its scripts read."""
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
