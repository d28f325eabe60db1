"""A sweep's trials on the workers of a Ray cluster: they are connected to, and given parts.

This process, the driver, has the lock of the sweep's folder. The trials of a worker that is killed
continue from their checkpoint, on another.
"""

import dataclasses
import logging
import os
import socket
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ccfl_jax.checks import one_line
from ccfl_jax.io.files import LOCK

from ..config import output
from ..config.run_flags import Config
from ..config.sweep_flags import Trials
from . import results, trial_training
from .ray_worker import SECONDS, Part, Setting, Worker
from .results import Record
from .trial_training import Sweep

_KILLED = 3  # so many workers, and the trials that they had have failed


def connect(cluster: str, config: Config) -> None:
    """Connects to a cluster, or starts one here; once in a process.

    Args:
        cluster: as the flag `--cluster`.
        config: with the devices of a worker.

    Raises:
        ImportError: without Ray.
        ValueError, RuntimeError: for a cluster that cannot be reached, or is too small.
    """
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray
    except ImportError as error:
        raise ImportError(
            f"--cluster: expected Ray (pip install 'ccfl_jax[cluster]'), found {error}"
        ) from None
    if not ray.is_initialized():
        known: dict[str, Any] = {"address": cluster}
        if local := _local(cluster):  # one of its own, with little memory for objects
            known = {"address": "local", "num_cpus": local * (config.devices or 1)}
            known |= {"include_dashboard": False, "object_store_memory": 80 * 2**20}
            os.environ.setdefault("RAY_worker_niceness", "0")  # as a sweep without it; Ray's is 15
        try:
            if not local and cluster != "auto":  # Ray itself tries for minutes
                host, _, port = cluster.rpartition(":")
                socket.create_connection((host.strip("[]"), port), timeout=10).close()
            ray.init(**known, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise RuntimeError(
                f"--cluster: expected a running cluster of Ray, or local:N, found {cluster}: "
                f"{one_line(str(error))}"
            ) from None
    platform, workers = _workers(cluster, config)
    if workers < (_local(cluster) or 1):
        raise ValueError(
            f"--cluster: expected workers of {config.devices or 1} {platform} each, found "
            f"{cluster} with enough for {workers}"
        )


def _local(cluster: str) -> int | None:
    """N of local:N, None of another cluster."""
    kind, _, number = cluster.partition(":")
    return int(number) if kind == "local" else None


def _workers(cluster: str, config: Config) -> tuple[str, int]:
    """What a worker's devices are, "CPU" or "GPU", and how many workers there may be."""
    import ray

    there = ray.cluster_resources()
    is_gpu = there.get("GPU", 0) > 0 and os.environ.get("JAX_PLATFORMS") != "cpu"
    platform = "GPU" if is_gpu else "CPU"
    enough = int(there.get(platform, 0)) // (config.devices or 1)
    return platform, min(enough, _local(cluster) or enough)


def train(groups: list[tuple[Trials, int]], sweep: Sweep, cluster: str) -> Iterator[Record]:
    """Trains groups of trials that share a program on all workers; yields records as they come.

    Args:
        groups: trials, and the length of their history.
        sweep: of all of them, whose folder this process has the lock of.
        cluster: as the flag `--cluster`; it is connected.

    Raises:
        ValueError, OSError, RuntimeError: of a worker that cannot be used, or its machine.
    """
    config = next(iter(groups[0][0].values())).config
    config = dataclasses.replace(config, devices=config.devices or 1)
    platform, workers = _workers(cluster, config)
    parts = []
    for members, history in groups:
        # On a CPU each device trains one trial at a time; what a GPU holds is known there alone.
        size = config.devices if platform == "CPU" else -(-len(members) // workers)
        names = trial_training.cut([*members], sweep.begun, size)
        parts += [Part({name: members[name] for name in own}, history) for own in names]
    count = min(workers, len(parts))
    output.say(f"workers   {count}, each of {config.devices} {platform}: {len(parts)} parts")
    owner = (sweep.folder / LOCK).read_text()
    setting = Setting(Path.cwd(), sweep.folder, owner, sweep.memory, config, platform)
    yield from _hand_out(deque(parts), setting, count, sweep)


def _hand_out(waiting: deque[Part], setting: Setting, count: int, sweep: Sweep) -> Iterator[Record]:
    """Gives each worker one part after the other, until all are done or a stop is requested."""
    import ray

    own = "num_gpus" if setting.platform == "GPU" else "num_cpus"
    hire = ray.remote(Worker).options(**{own: setting.config.devices}).remote
    busy, idle, lost = {}, [], 0  # reference of a report -> worker, its part, rounds so far
    try:
        for worker in [hire() for _ in range(count)]:
            busy[worker.start.remote(setting)] = worker, None, 0
        while waiting or any(part for _, part, _ in busy.values()):
            if stop := sweep.watch.stop_requested():
                waiting.clear()
            while waiting and idle:
                worker, part = idle.pop(), waiting.popleft()
                busy[worker.train.remote(part, stop)] = worker, part, 0
            for reference in ray.wait([*busy], timeout=SECONDS)[0] if busy else []:
                worker, part, before = busy.pop(reference)
                try:
                    report = ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    raise error.cause from None
                except ray.exceptions.RayError as error:
                    ray.kill(worker)  # which may be out of reach alone
                    lost += part is None
                    records, rest = _after_kill(part, lost, error, sweep.folder)
                    sweep.watch.bar.update(-before)
                    waiting.extendleft(rest)
                    worker = hire()
                    busy[worker.start.remote(setting)] = worker, None, 0
                    yield from records
                    continue
                sweep.watch.bar.update(report.rounds - before)
                _print(report.lines)
                if report.records is None:
                    busy[worker.report.remote(stop)] = worker, part, report.rounds
                else:
                    idle.append(worker)
                    yield from report.records
    finally:
        for worker in [*idle, *(worker for worker, _, _ in busy.values())]:
            ray.kill(worker)


def _after_kill(
    part: Part | None, lost: int, error: Exception, folder: Path
) -> tuple[list[Record], list[Part]]:
    """The records of a worker that was killed, and its trials that are to be continued.

    Raises:
        RuntimeError: if too many were killed as they started, without a part.
    """
    reason = one_line(str(error).strip().splitlines()[-1], 160)
    if part is None:
        if lost < _KILLED:
            return [], []
        raise RuntimeError(f"--cluster: expected workers that start, found {reason}")
    done, killed = results.read(folder, part.members), part.killed + 1
    left = {name: trial for name, trial in part.members.items() if name not in done}
    if killed < _KILLED:
        _print([f"warning   a worker was killed, {len(left)} trials go to another: {reason}"])
        return [*done.values()], [Part(left, part.history, killed)] if left else []
    cause = RuntimeError(f"{killed} workers that trained it were killed: {reason}")
    failed = [results.failed(trial, cause) for trial in left.values()]
    for one in failed:
        results.write(folder, one)
    return [*done.values(), *failed], []


def _print(lines: list[str]) -> None:
    """Prints lines on stderr, above the progress bar."""
    if lines:
        with tqdm.external_write_mode(file=sys.stderr):
            print(*lines, sep="\n", file=sys.stderr)
