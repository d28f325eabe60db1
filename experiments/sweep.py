"""Trains a grid of trials: `python -m experiments.sweep --vary='NAME=V,V NAME=V,V' --out_dir=DIR`.

Trials that differ in rates and seed alone are run by one compiled program, spread over the devices.
The same seed gives the same clients, schedule and initial model to every method and rate. The
folder holds `trials/` with a file for each, `results.csv` with every evaluation of every trial and
`summary.json`. The same command again redoes nothing that is done.

Exit codes: 0 done; 2 a flag, value or file was refused; 3 some trial diverged; 4 some failed.
"""

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.flags import Config
from experiments.sweep_flags import parse_sweep, sweep_help_text

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from experiments.group import Program
    from experiments.records import Record

ERRORS = (ValueError, OSError, ImportError, RuntimeError, MemoryError)


def main(argv: list[str]) -> int:
    """Runs the command line `argv` and returns the exit code."""
    if "--help" in argv[1:]:
        print(sweep_help_text())
        return 0
    try:
        asked = parse_sweep(argv)

        from experiments import records

        done = run(asked.trials, asked.out_dir, asked.memory)
    except ERRORS as error:
        print("sweep: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    folder = Path(asked.out_dir)
    records.write_table(folder / records.RESULTS, done)
    records.write_summary(folder / records.SUMMARY, records.choices(done))
    for server, choice in records.choices(done).items():
        print(f"best      {server}: {records.choice_line(choice)}")
    print(f"results   {folder / records.RESULTS}")
    return exit_code(done)


def exit_code(done: "list[Record]") -> int:
    """4 where a trial failed, else 3 where one diverged, else 0."""
    statuses = {one["status"] for one in done}
    return 4 if "failed" in statuses else 3 if "diverged" in statuses else 0


def run(
    trials: Mapping[str, Config], folder: str | os.PathLike, memory: float | None = None
) -> "list[Record]":
    """Trains those of `trials` whose record is not in `folder` yet; returns the records of all.

    A trial that cannot be trained is recorded with the reason, and the others go on.

    Args:
        trials: name -> settings, in the order they are run in.
        folder: of the sweep.
        memory: bytes of a device for trials that advance together; by default a quarter of an
            accelerator's. On a CPU each device has one at a time.

    Raises:
        ValueError, OSError: for a folder that holds other trials under these names, and for data
            that cannot be read where all trials share them.
    """
    from experiments import build, devices, group, records

    done = records.read(folder, trials)
    left = {name: config for name, config in trials.items() if name not in done}
    print(f"sweep     {folder}: {len(trials)} trials, {len(done)} of them done before", flush=True)
    ground, clock = _ground(devices.start(next(iter(trials.values())))), _Clock(left)
    if len({build.source(config) for config in left.values()}) == 1:
        first = next(iter(left.values()))  # without data there is nothing that could go on
        ground(build.source(first), first.model, first.compute_dtype)
    alike: dict[tuple, dict[str, Config]] = {}
    for name, config in left.items():
        alike.setdefault(group.shared(config), {})[name] = config
    for members in alike.values():
        for one in _train_alike(members, ground, memory, clock):
            records.write(folder, one)
            done[one["name"]] = one
            print(f"trial     {records.line(one)}", flush=True)
    return [done[name] for name in trials]


def _ground(mesh: "Mesh") -> Callable:
    """`group.ground` on these devices; the last few are kept, for methods that learn the same."""
    from experiments import group

    return functools.lru_cache(maxsize=4)(functools.partial(group.ground, mesh))


class _Clock:
    """Says once, after the first piece, how long all will take."""

    def __init__(self, trials: Mapping[str, Config]) -> None:
        self.left = sum(config.rounds for config in trials.values())
        self.started, self.said = None, False

    def advance(self, trials: int, rounds: int) -> None:
        """Counts `rounds` more of so many trials."""
        self.left -= trials * rounds
        now = time.perf_counter()
        if self.started is None:  # the first piece compiles the evaluation
            self.started, self.done = now, 0
            return
        self.done += trials * rounds
        if not self.said:
            minutes = (now - self.started) / self.done * self.left / 60
            print(f"time      about {minutes:.3g} minutes left", flush=True)
            self.said = True


def _train_alike(
    members: dict[str, Config], ground: Callable, memory: float | None, clock: _Clock
) -> "Iterator[Record]":
    """Trains trials that share a program, as many at once as devices and memory allow."""
    from experiments import build, group, records

    first = next(iter(members.values()))
    try:
        source = build.source(first)
        program = group.program(first, ground(source, first.model, first.compute_dtype))
    except ERRORS as error:
        yield from (records.failed(name, config, error) for name, config in members.items())
        return
    nbytes, together, budget = group.at_once(program, memory)
    limit = "" if budget is None else f" of {budget / 1e6:.3g} MB"
    names, count = list(members), program.ground.mesh.size
    size = together * count
    print(
        f"program   {first.server}, {first.rounds} rounds: {len(names)} trials, {together} at once "
        f"on each of {count} devices; {nbytes / 1e6:.3g} MB a trial{limit}",
        flush=True,
    )
    for start in range(0, len(names), size):
        yield from _train(
            program, {name: members[name] for name in names[start : start + size]}, clock
        )


def _train(program: "Program", members: dict[str, Config], clock: _Clock) -> "Iterator[Record]":
    from experiments import group, records

    try:
        every = group.train(
            program, list(members.values()), functools.partial(clock.advance, len(members))
        )
    except ERRORS as error:
        if len(members) == 1:
            yield from (records.failed(name, config, error) for name, config in members.items())
        else:  # one of them may be the cause: each for itself
            for name, config in members.items():
                yield from _train(program, {name: config}, clock)
        return
    for (name, config), rows in zip(members.items(), every, strict=True):
        yield records.made(name, config, rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
