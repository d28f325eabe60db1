"""A finished run, from its folder: settings, rows, models and their task."""

import dataclasses
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from ccfl_jax import systems
from ccfl_jax.algorithm.types import Params, Task
from ccfl_jax.checks import one_line
from ccfl_jax.data.arrays import samples
from ccfl_jax.io.files import as_json
from ccfl_jax.models import by_name
from ccfl_jax.runs import checkpoints, metrics, run_config
from ccfl_jax.runs.metrics import Row

_BATCH = 1000  # samples that the model sees together


@dataclasses.dataclass(frozen=True)
class Run:
    """A run, as `load_run` finds it.

    Attributes:
        folder: of the run.
        config: its settings, by the names of their flags.
        rows: its evaluations, dicts with the columns of `metrics.next_row`.

    Examples:
        Of a folder that `ccfl train --preset=digits --rounds=2 --out_dir=runs/digits` made:

        >>> run = ccfl.load_run("runs/digits")
        >>> run.config["server"], run.rows[-1]["round"]
        ('cc_fedams', 2)
        >>> scores = ccfl.evaluate(run.task, run.params("last"), ccfl.load_dataset("digits")[1])
        >>> abs(scores["accuracy"] - run.rows[-1]["test_accuracy"]) < 1e-6
        True
    """

    folder: Path
    config: dict[str, Any]
    rows: list[Row]

    @cached_property
    def task(self) -> Task:
        """What was learnt; of a run of Ditto the task of two models.

        Raises:
            FileNotFoundError: for a run of an earlier version.
            ValueError: for a task whose code is not there.
        """
        task = by_name.task_of(_object(self.folder, by_name.RECORD))
        is_ditto = str(self.config.get("rule")).partition("(")[0] == "ditto"
        return systems.ditto(task)[0] if is_ditto else task

    def params(self, which: Literal["best", "last"] | int = "last") -> Params:
        """A model of the run.

        Args:
            which: "last", that of the newest checkpoint; "best", of the one with the best test
                score; or a round that has one.

        Raises:
            ValueError: if there is no such checkpoint.
            OSError: if it is damaged.
        """
        kept = checkpoints.open_checkpoints(self.folder, read_only=True)
        try:
            rounds = sorted(kept.all_steps())
            known = {"last": kept.latest_step(), "best": kept.best_step()} if rounds else {}
            number = known.get(which, which) if isinstance(which, str) else which
            if number not in rounds:
                raise ValueError(
                    f"which: expected best, last or one of the rounds kept, {rounds}, found "
                    f"{which!r}"
                )
            like = jax.eval_shape(self.task.init, jax.random.key(0))
            return checkpoints.read_params(kept, number, like)
        finally:
            kept.close()

    def predict(self, x: Any, which: Literal["best", "last"] | int = "last") -> np.ndarray:
        """What the model computes for some samples: logits, or numbers.

        Args:
            x: `[N, ...]`, like the run's samples.
            which: the model, as for `params`.

        Raises:
            ValueError: as `params`; for a task without `predict`.
        """
        if self.task.predict is None:
            raise ValueError("task: expected one with predict, found a task without")
        run, params = jax.jit(self.task.predict), self.params(which)
        (x,) = samples({"x": x}).values()
        pieces = [run(params, x[k : k + _BATCH]) for k in range(0, len(x), _BATCH)]
        return np.concatenate([np.asarray(piece) for piece in pieces])


def load_run(folder: str | os.PathLike) -> Run:
    """Opens the folder of a run, finished or not; nothing in it is changed.

        run = ccfl.load_run("runs/digits-cc_fedams-001")
        pandas.DataFrame(run.rows).plot(x="round", y="test_accuracy")
        scores = ccfl.evaluate_clients(run.task, run.params("best"), data)
        state = simulation.init(key, params=run.params("last"))  # a warm start

    A sweep keeps no models: train its chosen setting.

    Raises:
        FileNotFoundError: if it is no folder of a run.
        ValueError: if its files are not whole.

    Examples:
        Of a folder that `ccfl train --preset=digits --rounds=2 --out_dir=runs/digits` made:

        >>> run = ccfl.load_run("runs/digits")
        >>> [row["round"] for row in run.rows]
        [0, 2]
        >>> _, test = ccfl.load_dataset("digits")
        >>> run.predict(test["x"], "best").shape
        (360, 10)
    """
    folder = Path(folder)
    config = _object(folder, run_config.CONFIG)
    config.pop("environment", None)
    return Run(folder, config, metrics.read_rows(folder))


def _object(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder}: expected the folder of a run (a sweep keeps no models), found no {name}"
        )
    found = as_json(path.read_bytes(), path)
    if not isinstance(found, Mapping):
        raise ValueError(f"{path}: expected a JSON object, found {one_line(str(found), 80)}")
    return dict(found)
