"""A comparison of methods: schedules, tuning, final runs, tables and figures."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ccfl_jax.io.files import replace_file
from ccfl_jax.runs import provenance, run_config
from ccfl_jax.schedules.schedule import Schedule

from ..config.compare_flags import FINAL, WORLDS
from ..config.run_flags import Config
from ..config.schedule_flags import parse_schedule
from ..figures import canvas, curves
from ..schedules import make
from ..sweeps import results, runner, selection, tables
from ..sweeps.results import Record
from ..training import intervals, parts, tasks
from . import plan as planning
from . import scores
from .plan import Plan

_ENDINGS = {"markdown": "md", "csv": "csv", "latex": "tex"}


def compare(plan: Plan) -> int:
    """Trains what is not done in every world, and writes tables; returns the exit code."""
    every, stages, rows, summary = [], [], [], {}
    worlds = plan.options.worlds.split(",")
    grids = {world: planning.tuning(plan, world) for world in worlds}  # refused before any work
    first = next(iter(grids[worlds[0]].values())).config
    cluster = plan.options.cluster
    runner.start(first, cluster)  # before JAX makes its own devices
    _check_target(plan, first)
    for world in worlds:
        print(f"\nworld     {world}")
        for line in schedules(plan, world, first.accepted):
            print(line)
        folder = plan.folder / world
        tried = runner.run(grids[world], folder / "tuning", cluster=cluster)
        choices = _choices(tried)
        for method, members in selection.by_method(tried).items():
            print(f"best      {method}: {_line(choices[method], members)}")
        chosen = [one.varied for one in choices.values() if one is not None]
        trials = planning.final(plan, world, chosen)
        results.carry_over(tried, trials, folder / FINAL)
        final = runner.run(trials, folder / FINAL, cluster=cluster) if trials else []
        own = scores.table(final, plan.target)
        rows += [{"world": world, **row} for row in own]
        print(tables.as_markdown(own))
        canvas.drawn(folder, partial(_draw, final, plan, world))
        every += [*tried, *final]
        stages += [f"{world} tuning"] * len(tried) + [f"{world} final"] * len(final)
        summary[world] = {
            name: None if one is None else one.setting for name, one in choices.items()
        }
    for name, written in tables.FORMATS.items():
        replace_file(plan.folder / f"table.{_ENDINGS[name]}", written(rows))
    results.write_table(plan.folder / results.RESULTS, every, stages)
    found = {"environment": run_config.environment(), "chosen": summary}
    results.write_summary(plan.folder / results.SUMMARY, found | {"table": rows})
    print(f"results   {plan.folder / 'table.md'}, {plan.folder / results.SUMMARY}")
    return runner.exit_code(every)


def _check_target(plan: Plan, config: Config) -> None:
    """Raises ValueError for a target that is no metric of the task."""
    if plan.target is not None:
        train, _, test, _, classes = parts.load(*parts.source(config))
        own = config.dataset, config.model, config.compute_dtype
        task = tasks.task_of(*own, train, classes)
        intervals.check_target(replace(config, target=plan.target), task, parts.arrays_of(test))


def schedules(plan: Plan, world: str, accepted: Sequence[str]) -> list[str]:
    """Makes the schedules of a world that do not exist, one for each seed; says which.

    Raises:
        ValueError: for one that exists and is not what these flags make, unless it is `accepted`.
    """
    lines = []
    for seed in range(plan.options.seeds):
        file = str(planning.schedule_file(plan, world)).replace("{seed}", str(seed))
        # The clock makes the delays of its worlds itself.
        left_out = "--accept_changed=", *(() if world == "paper" else ("--max_delay=",))
        own = [word for word in plan.flags if not word.startswith(left_out)]
        words = ["compare", *own, f"--seed={seed}", f"--file={file}", *WORLDS[world]]
        request = parse_schedule(words)
        made = make.world(request.config, request.options).schedule
        if request.file.exists():
            found = Schedule.load(request.file).digest(), made.digest()
            before, now = ({f"schedule[seed={seed}]": one} for one in found)
            provenance.check_same(request.file, before, now, accepted)
            continue
        request.file.parent.mkdir(parents=True, exist_ok=True)
        made.save(request.file)
        lines.append(f"schedule  {request.file}")
    return lines


def _choices(tried: Sequence[Record]) -> dict[str, Record | None]:
    """method -> the trial with the best score of the held-out samples; None without any."""
    found: dict[str, Record | None] = {}
    for method, members in selection.by_method(tried).items():
        best = selection.best(members)
        found[method] = next((one for one in members if one.setting == best), None)
    return found


def _line(choice: Record | None, tried: Sequence[Record]) -> str:
    if choice is None:
        return "no finished trial has a score of the held-out samples"
    edges = selection.on_edge(choice.varied, [one.varied for one in tried])
    edge = f"; the smallest or largest tried: {', '.join(edges)}" if edges else ""
    score = selection.tail_mean(choice, "validation")
    return f"{choice.setting}, held-out {choice.score} {score:.4f}{edge}"


def _draw(final: Sequence[Record], plan: Plan, world: str) -> None:
    """The curves of the methods over rounds and, with a clock, over virtual time."""
    drawn = selection.by_method([one for one in final if len(one.rows) > 1])
    runs = {method: [one.rows for one in members] for method, members in drawn.items()}
    if not runs:
        return
    has_clock = all(row["virtual_time"] is not None for own in runs.values() for row in own[0])
    for x in ("round", *(["virtual_time"] if has_clock else [])):
        paths = [plan.folder / f"{world}-{x}.{ending}" for ending in ("png", "svg")]
        curves.draw_methods(runs, paths, f"{world}: {len(runs)} methods", x)
