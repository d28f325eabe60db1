"""Trains a grid of trials: `python -m experiments.sweep --vary='NAME=V,V NAME=V,V' --out_dir=DIR`.

Trials that differ in rates and seed alone are run by one compiled program, spread over the devices.
The same seed gives the same clients, schedule and initial model to every method and rate. The
folder holds `trials/` with a file for each, `results.csv` with every evaluation of every trial and
`summary.json`. The same command again redoes nothing that is done, and goes on with the trials that
were under way.

Exit codes: 0 done; 2 a flag, value or file was refused; 3 some trial diverged; 4 some failed; 5
SIGTERM or SIGINT stopped it, and the same command goes on.
"""

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments import cadence
from experiments.flags import Config
from experiments.stopping import STOPPED, on_signals
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

        done = run(asked.trials, asked.out_dir, asked.memory, asked.overwrite)
    except Stopped as error:
        print(f"stopped   {error}")
        return STOPPED
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
    trials: Mapping[str, Config],
    folder: str | os.PathLike,
    memory: float | None = None,
    overwrite: bool = False,
) -> "list[Record]":
    """Trains those of `trials` whose record is not in `folder` yet; returns the records of all.

    A trial that cannot be trained is recorded with the reason, and the others go on.

    Args:
        trials: name -> settings, in the order they are run in.
        folder: of the sweep.
        memory: bytes of a device for trials that advance together; by default a quarter of an
            accelerator's. On a CPU each device has one at a time.
        overwrite: whether to remove first what a sweep has left in `folder`.

    Raises:
        ValueError, OSError: for a folder that holds other trials under these names or is in use,
            and for data that cannot be read where all trials share them.
        Stopped: after SIGTERM or SIGINT, once all that was done is saved.
    """
    from ccfl_jax import folder as folders
    from experiments import records

    mesh = _mesh(trials)
    lock = folders.lock(folder)
    if lock.left_by:
        print(f"warning   {folder}: {lock.left_by} ended without letting it go", file=sys.stderr)
    try:
        if overwrite:
            folders.check_unused(folder, records.FILES)
            folders.clear(folder, records.FILES)
        with on_signals() as asked:
            return _run(trials, Path(folder), memory, mesh, asked)
    finally:
        lock.release()


def _run(
    trials: Mapping[str, Config],
    folder: Path,
    memory: float | None,
    mesh: "Mesh",
    asked: Callable[[], bool],
) -> "list[Record]":
    from experiments import build, group, records, underway

    done = records.read(folder, trials)
    left = {name: config for name, config in trials.items() if name not in done}
    begun = underway.groups(folder, {name: records.digest(left[name]) for name in left})
    going = f", {sum(map(len, begun))} under way" if begun else ""
    print(f"sweep     {folder}: {len(trials)} trials, {len(done)} of them done before{going}")
    ground, clock = _ground(mesh), _Clock(left)
    if len({build.source(config) for config in left.values()}) == 1:
        first = next(iter(left.values()))  # without data there is nothing that could go on
        ground(build.source(first), first.model, first.compute_dtype)
    alike: dict[tuple, dict[str, Config]] = {}
    for name, config in left.items():
        alike.setdefault(group.shared(config), {})[name] = config
    # Of all trials, so that those under way find the history that they began with.
    seeds = {one.seed: one for one in trials.values()} if left else {}
    models = max(map(build.history_length, seeds.values()), default=0)
    course = _Course(folder, begun, ground, models, memory, clock, asked, cadence.Minutes())
    for members in alike.values():
        for one in _train_alike(members, course):
            records.write(folder, one)
            done[one["name"]] = one
            print(f"trial     {records.line(one)}", flush=True)
    return [done[name] for name in trials]


class Stopped(Exception):
    """Says how a sweep that was asked to stop goes on."""


class _Course(NamedTuple):
    """What all trials of a sweep have in common: where, in which groups, and who is asked."""

    folder: Path
    begun: list[list[str]]
    ground: Callable
    models: int
    memory: float | None
    clock: "_Clock"
    asked: Callable[[], bool]
    minutes: cadence.Minutes


def _mesh(trials: Mapping[str, Config]) -> "Mesh":
    from experiments import devices

    return devices.start(next(iter(trials.values())))


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


def _train_alike(members: dict[str, Config], course: _Course) -> "Iterator[Record]":
    """Trains trials that share a program, as many at once as devices and memory allow."""
    from experiments import build, group, records

    first = next(iter(members.values()))
    try:
        source = build.source(first)
        ground = course.ground(source, first.model, first.compute_dtype)
        program = group.program(first, course.models, ground)
    except ERRORS as error:
        yield from (records.failed(name, config, error) for name, config in members.items())
        return
    nbytes, together, budget = group.at_once(program, course.memory)
    limit = "" if budget is None else f" of {budget / 1e6:.3g} MB"
    count = program.ground.mesh.size
    print(
        f"program   {first.server}, {first.rounds} rounds: {len(members)} trials, {together} at "
        f"once on each of {count} devices; {nbytes / 1e6:.3g} MB a trial{limit}",
        flush=True,
    )
    begun = [names for names in course.begun if names[0] in members]
    rest = [name for name in members if not any(name in names for names in begun)]
    size = together * count
    for names in [*begun, *(rest[k : k + size] for k in range(0, len(rest), size))]:
        yield from _train(program, {name: members[name] for name in names}, course)


def _train(program: "Program", members: dict[str, Config], course: _Course) -> "Iterator[Record]":
    """Trains some of them together, from where they were left if they were under way."""
    from experiments import records, underway

    digests = {name: records.digest(config) for name, config in members.items()}
    place = underway.place(course.folder, digests)
    try:
        every = _rows(program, members, course, place)
    except ERRORS as error:
        underway.remove(place)
        if len(members) == 1:
            yield from (records.failed(name, config, error) for name, config in members.items())
        else:  # one of them may be the cause: each for itself
            for name, config in members.items():
                yield from _train(program, {name: config}, course)
        return
    for (name, config), rows in zip(members.items(), every, strict=True):
        yield records.made(name, config, rows)
    underway.remove(place)  # not before their records are written


def _rows(
    program: "Program", members: dict[str, Config], course: _Course, place: Path
) -> list[list[dict[str, Any]]]:
    from ccfl_jax import checkpoints as saving
    from experiments import group, underway

    configs, names = list(members.values()), list(members)
    checkpoints = saving.open_checkpoints(place, program.config.keep_checkpoints)
    try:
        begun = underway.take_up(checkpoints, place, names, group.like(program))
        if begun is not None:
            course.clock.left -= len(names) * int(begun.states.round[0])
        position = group.train(
            program,
            configs,
            group.Watch(
                functools.partial(course.clock.advance, len(names)),
                course.asked,
                course.minutes.is_checkpoint,
                functools.partial(underway.save, checkpoints),
            ),
            begun,
        )
    finally:
        saving.close(checkpoints)
    if not group.is_done(program, position):
        raise Stopped("the same command goes on")
    return position.rows


if __name__ == "__main__":
    sys.exit(main(sys.argv))
