"""What the tests of the commands share: a program is traced and compiled once in each file."""

import re

import pytest

from experiments.config.settings import DECIDING
from experiments.sweeps import trial_group
from experiments.training import method, parts, tasks

_PROGRAM = [n for n in DECIDING if n not in trial_group.ARGUMENTS]


@pytest.fixture(scope="module", autouse=True)
def shared_programs(quickly_compiled):
    """Equal settings give the same task and round function, so that jit finds their programs."""
    task_of, round_at, kept = tasks.task_of, parts.round_at, {}

    def task_once(dataset, model, dtype, train, classes):
        if model.startswith("task("):  # of a file that a test writes
            return task_of(dataset, model, dtype, train, classes)
        key = dataset, model, dtype, train["x"].shape[1:], classes
        return kept.setdefault(key, task_of(dataset, model, dtype, train, classes))

    def round_once(config, task, classes, mesh):
        own = (
            *method.program(config),
            *(getattr(config, n) for n in (*_PROGRAM, "work_unit", "lanes")),
        )
        key = *own, task, classes, mesh
        return kept.setdefault(key, round_at(config, task, classes, mesh))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "task_of", task_once)
        patch.setattr(parts, "round_at", round_once)
        yield


@pytest.fixture
def refuses(capsys):
    """`refuses(message, main, *argv)`: the command ends with code 2 and this line after its name,
    in which "..." is any text; returns what it printed before."""

    def check(message, main, *argv):
        capsys.readouterr()
        assert main([*map(str, argv)]) == 2
        said = capsys.readouterr()
        pattern = ".*".join(map(re.escape, f"{argv[0]}: {message}\n".split("...")))
        assert re.fullmatch(pattern, said.err), said.err
        return said.out

    return check
