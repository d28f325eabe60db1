"""config/command.py: help and complaints come at once, and load nothing."""

import dataclasses
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import train
from experiments.config.command import help_of
from experiments.config.run_flags import RUN, Config

ROOT = Path(__file__).parents[3]
TABLES = {"train": RUN}
for _name in ("sweep", "schedule", "reproduce", "plot", "bench", "report"):
    _flags = importlib.import_module(f"experiments.config.{_name}_flags")
    TABLES[_name] = getattr(_flags, _name.upper())
_LIGHT = """
import sys
from experiments.{name} import main
codes = [main(["x", word]) for word in ("--help", "-h", "--helpp", "--file=a", "--b2=1")]
heavy = {{"jax", "tensorflow_datasets", "matplotlib", "sklearn", "orbax"}} & set(sys.modules)
sys.exit(f"{{codes}} {{heavy}}" if heavy or codes != [0, 0, 2, 2, 2] else 0)
"""


@pytest.mark.parametrize("name", TABLES)
def test_help_and_complaints_load_nothing(tmp_path, name):
    line, path = [sys.executable, "-c", _LIGHT.format(name=name)], {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=path)
    assert done.returncode == 0, done.stderr
    about = importlib.import_module(f"experiments.{name}").__doc__
    assert done.stdout == 2 * (help_of(about, TABLES[name]) + "\n")
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert re.findall(r"^  --(\w+)", done.stdout, re.MULTILINE) == 2 * [*TABLES[name]]
    expected = f"{name}: --helpp: expected a flag that --help names, found an unknown one"
    assert done.stderr.startswith(expected) and done.stderr.count("\n") == 3
    assert list(tmp_path.iterdir()) == []


def test_a_flag_stands_in_one_table():
    assert [*RUN] == [field.name for field in dataclasses.fields(Config)]
    shared = {name: {*TABLES[name]} & {*RUN} for name in ("sweep", "reproduce", "schedule")}
    assert shared == {"sweep": set(), "reproduce": set(), "schedule": {"overwrite"}}


@pytest.mark.parametrize("word", ["--helpfull", "--help=x", "-h", "--helpshort", "-help"])
def test_every_way_to_ask_for_help_gets_it(word, capsys):
    assert train.main(["train", "--seed=1", word]) == 0
    assert capsys.readouterr().out.strip() == help_of(train.__doc__, RUN)


def test_help_may_be_cut_off_by_its_reader():
    reader, writer = os.pipe()  # as by `| head -0`: closed before anything is written
    os.close(reader)
    line = [sys.executable, "-m", "experiments.train", "--help"]
    done = subprocess.run(line, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
