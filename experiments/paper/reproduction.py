"""The reproduction of a figure or table: its grid, final runs, figure and verdicts."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ccfl_jax.runs import run_config

from ..config.methods import SERVERS
from ..config.sweep_flags import Trials
from ..figures import canvas, curves
from ..sweeps import results, runner, selection
from ..sweeps.results import Record
from ..sweeps.selection import Choice
from . import claims, presets
from .presets import Preset


def reproduce(
    preset: Preset, grid: Trials, seeds: int, folder: Path, cluster: str | None = None
) -> int:
    """Trains the remaining trials, draws and judges; returns the exit code.

    Args:
        preset: the experiment.
        grid: the trials by which rates are chosen.
        seeds: runs of each chosen setting.
        folder: of the experiment.
        cluster: whose workers train, or None.
    """
    print(f"\n{preset.name}: {preset.title}")
    tried = runner.run(grid, folder / "grid", cluster=cluster)
    choices = {
        server: choice._replace(on_edge=_edges(choice, grid))
        for server, choice in selection.choices(tried).items()
    }
    for server, choice in choices.items():
        edge = f"; on the grid's edge: {', '.join(choice.on_edge)}" if choice.on_edge else ""
        print(f"best      {server}: {selection.line(choice)}{edge}")
    trials = _final_trials(preset, choices, seeds)
    results.carry_over(tried, trials, folder / "final")
    final = runner.run(trials, folder / "final", cluster=cluster) if trials else []
    canvas.drawn(folder, partial(_draw, preset, final, folder))
    verdicts = claims.judge(preset, final)
    for one in verdicts:
        print(f"verdict   {claims.line(one)}")
    stages = ["grid"] * len(tried) + ["final"] * len(final)
    results.write_table(folder / results.RESULTS, [*tried, *final], stages)
    summary = {
        "name": preset.name,
        "title": preset.title,
        "environment": run_config.environment(),
        "choices": selection.as_json(choices),
        "final": selection.scores(final),
        "verdicts": verdicts,
    }
    results.write_summary(folder / results.SUMMARY, summary)
    print(f"results   {folder / results.RESULTS}, {folder / results.SUMMARY}")
    return runner.exit_code([*tried, *final])


def _edges(choice: Choice, grid: Trials) -> list[str]:
    if choice.chosen is None:
        return []
    return selection.on_edge(choice.varied, [trial.varied for trial in grid.values()])


def _final_trials(preset: Preset, choices: dict[str, Choice], seeds: int) -> Trials:
    """Each chosen setting with every seed and, for a sensitivity figure, every value."""
    trials = {}
    for server, choice in choices.items():
        if choice.chosen is None:
            continue
        varied = [(n, v) for n, values in preset.vary.items() for v in values]
        own = varied if all(n in SERVERS[server] for n in preset.vary) else []
        for change in [dict([pair]) for pair in own] or [{}]:
            for seed in range(seeds):
                trials |= presets.trial(preset, {**choice.varied, **change, "seed": seed})
    return trials


def _draw(preset: Preset, final: Sequence[Record], folder: Path) -> None:
    """The figure in the paper's form, of the trials that have rows."""
    paths = [folder / f"{preset.name}.{ending}" for ending in ("png", "svg")]
    drawn = [one for one in final if len(one.rows) > 1]
    if not drawn:
        return
    if not preset.vary:
        methods = {
            name.removeprefix("server="): [one.rows for one in members]
            for name, members in selection.settings(drawn).items()
        }
        curves.draw_methods(methods, paths, preset.title, "round")
        return
    (name,) = preset.vary
    points, line = selection.by_value(drawn, name)
    curves.draw_sensitivity(points, line, paths, preset.title, name, f"test {drawn[0].score}")
