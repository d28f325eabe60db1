"""`clients.csv`: what the models of a run are worth to each client at its end."""

import csv
import io
from functools import partial
from pathlib import Path

import jax
import numpy as np

import ccfl_jax as ccfl
from ccfl_jax import systems
from ccfl_jax.algorithm.types import Params
from ccfl_jax.io.files import replace_file

from ..config.run_flags import Config
from . import client_scores, devices, method
from .run_setup import Job

Columns = dict[str, np.ndarray]  # column -> `[clients]`


def written(job: Job, state: ccfl.State) -> list[str]:
    """Writes the table of a run that tests its clients; lines that sum it up.

    Raises:
        OSError: if it cannot be written.
    """
    if "clients" not in job.problem.tested:
        return []
    scores = _scores(job, state)
    if jax.process_index() == 0:
        sizes = (job.problem.data.sizes, job.problem.tested["clients"].sizes)
        names = ("client", "samples", "test_samples")
        numbers = (range(len(sizes[0])), *(np.asarray(own).tolist() for own in sizes))
        _write(
            Path(job.config.out_dir) / client_scores.CLIENTS,
            dict(zip(names, numbers, strict=True)),
            scores,
        )
    return [f"clients   {name}: {_over(name, values)}" for name, values in scores.items()]


def _scores(job: Job, state: ccfl.State) -> Columns:
    """The scores of the global model, of clients' own ones, and of fine-tuned ones."""
    config, problem = job.config, job.problem
    kinds: dict[str, dict] = {"": {}}
    if own := method.own_model(config, problem.task):
        kinds["own_"] = {"own": own, "memories": state.clients}
    if config.fine_tune is not None:
        kinds["tuned_"] = {"own": _memory, "memories": _tuned(job, state.params)}
    found = {}
    for kind, theirs in kinds.items():
        tested = problem.task, state.params, problem.tested["clients"]
        every = ccfl.evaluate_clients(*tested, **theirs)
        found |= {kind + name: values for name, values in client_scores.scores(every).items()}
    return found


def _memory(params: Params, memory: Params) -> Params:
    del params
    return memory


def _tuned(job: Job, params: Params) -> Params:
    """The models that clients make of the global one, `[clients, ...]`.

    Each visits once, as many together as in a round, with the batch orders of the first rounds.
    """
    config, problem = job.config, job.problem
    schedule = _everybody_once(config)
    local = method.made(config, method.numbers(config)).local
    how = {"lanes": config.lanes, "mesh": problem.mesh, "rule": systems.fine_tuning()}
    own = problem.task, ccfl.cc_fedavg(), local, config.batch_size
    simulation = ccfl.simulation(*own, **how)
    state = simulation.init(jax.random.key(config.seed), 1, config.num_clients, params=params)
    state = devices.put(state, problem.mesh)
    pieces = [(schedule, problem.data)]
    if problem.memory is not None:
        put = partial(devices.share, mesh=problem.mesh)
        pieces = ccfl.stream_rounds(schedule, problem.data, problem.memory, put)
    for piece, data in pieces:
        state, _ = ccfl.run_rounds(simulation.round, state, piece, data)
    return state.clients


def _everybody_once(config: Config) -> ccfl.Schedule:
    """`fine_tune` epochs of each client, from the model of now."""
    count, slots = config.num_clients, config.buffer_size
    who = np.arange(-(-count // slots) * slots, dtype=np.int32).reshape(-1, slots)
    there = who < count
    client, work = np.where(there, who, 0), there * np.int32(config.fine_tune)
    unit = {"num_clients": count, "work_unit": "epochs"}
    return ccfl.Schedule(client, np.zeros_like(who), work, there, **unit)


def _over(name: str, values: np.ndarray) -> str:
    found = client_scores.fairness(name, values)
    return f"mean {found.mean:.4f}, worst decile {found.worst:.4f}, variance {found.variance:.4f}"


def _write(path: Path, numbers: dict, scores: Columns) -> None:
    """A line for each client; a score is empty where there is none."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*numbers, *scores])
    shown = ([f"{v:.6g}" if np.isfinite(v) else "" for v in own] for own in scores.values())
    writer.writerows(zip(*numbers.values(), *shown, strict=True))
    replace_file(path, text.getvalue())
