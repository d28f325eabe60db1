"""One figure or table of the paper: `python -m experiments.reproduce NAME [--rounds=N ...]`.

Tunes every method's rates over the paper's grid with one seed, chooses by the mean training score
over the last fifth of the rounds, runs the chosen ones with several seeds, and says whether the
paper's claim held. NAME is one of `list`, or `all`. The folder holds `grid/` and `final/` (sweeps),
`results.csv` (every evaluation of every trial), `summary.json` (choices and verdicts) and the
figure as PNG and SVG. The same command again redoes nothing that is done.

What is no flag of this command is one of `experiments.train` and replaces the preset's.
Exit codes: 0 done, whatever the verdict; 2 refused; 3 some trial diverged; 4 some failed; 5
SIGTERM or SIGINT stopped it, and the same command goes on.
"""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from ccfl_jax import config_file
from experiments import arguments, paper, records, sweep, verdict
from experiments.flags import FLAGS
from experiments.records import Record
from experiments.rules import SERVERS
from experiments.stopping import STOPPED

_MOST_SEEDS = 1000


def main(argv: list[str]) -> int:
    """Runs the command line `argv` and returns the exit code."""
    try:
        asked, rest = arguments.read(_parser(), argv, [*FLAGS, "flagfile"])
    except ValueError as error:
        print("reproduce: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    if asked.name == "list":
        for name in paper.names():
            print(f"{name:20} {paper.preset(name, {}).title}")
        return 0
    names = paper.names() if asked.name == "all" else [asked.name]
    try:
        own = _flags(rest) | ({} if asked.normalise is None else {"normalise": asked.normalise})
        plans = {name: _plan(name, own, asked) for name in names}  # all are legal before one starts
        codes = [_run(preset, grid, asked, argv) for preset, grid in plans.values()]
    except sweep.Stopped as error:
        print(f"stopped   {error}")
        return STOPPED
    except sweep.ERRORS as error:
        print("reproduce: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    return max(codes)


def _parser() -> arguments.Parser:
    parser = arguments.Parser("reproduce", description=__doc__.split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("name", metavar="NAME", help="an experiment, `list` or `all`")
    parser.add_argument("--rounds", type=int, help="instead of the paper's 500")
    parser.add_argument("--grid_rounds", type=int, help="of the trials of the grid; else --rounds")
    parser.add_argument("--grid", choices=paper.GRIDS, default="paper", help="rates to try")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each chosen setting")
    parser.add_argument("--normalise", help="steps, epochs or none, instead of steps")
    parser.add_argument("--out_dir", type=Path, help="else runs/reproduce-NAME")
    return parser


def _flags(words: list[str]) -> dict[str, str]:
    pairs = [word.removeprefix("--").partition("=") for word in words]
    for word, (name, found, _) in zip(words, pairs, strict=True):
        if not (word.startswith("--") and found and name):
            raise ValueError(f"{word!r}: found no value, legal: --FLAG=VALUE of experiments.train")
    return {name: value for name, _, value in pairs}


def _plan(
    name: str, own: dict[str, str], asked: argparse.Namespace
) -> tuple[paper.Preset, paper.Trials]:
    """The experiment and its grid; every setting is legal by then."""
    if not 1 <= asked.seeds <= _MOST_SEEDS:
        raise ValueError(f"--seeds: found {asked.seeds}, legal: 1 to {_MOST_SEEDS}")
    if asked.rounds is not None:
        own = own | {"rounds": str(asked.rounds)}
    preset = paper.preset(name, own)
    return preset, paper.rate_grid(preset, asked.grid, asked.grid_rounds)


def _run(
    preset: paper.Preset, grid: paper.Trials, asked: argparse.Namespace, argv: list[str]
) -> int:
    folder = asked.out_dir or Path("runs")
    if asked.out_dir is None or asked.name == "all":
        folder = folder / f"reproduce-{preset.name}"
    print(f"\n{preset.name}: {preset.title}")
    tried = sweep.run(grid, folder / "grid")
    choices = records.choices(tried)
    for server, choice in choices.items():
        choice["on_edge"] = _edges(choice, grid)
        edge = f"; on the grid's edge: {', '.join(choice['on_edge'])}" if choice["on_edge"] else ""
        print(f"best      {server}: {records.choice_line(choice)}{edge}")
    trials = _final_trials(preset, choices, asked.seeds)
    _carry_over(tried, trials, folder / "final")
    final = sweep.run(trials, folder / "final") if trials else []
    _draw(preset, final, folder)
    verdicts = verdict.judge(preset, final)
    for one in verdicts:
        print(f"verdict   {verdict.line(one)}")
    records.write_table(folder / records.RESULTS, [*_named("grid", tried), *_named("final", final)])
    summary = {
        "name": preset.name,
        "title": preset.title,
        "command": "python -m experiments.reproduce " + shlex.join(argv[1:]),
        "environment": config_file.environment(),
        "choices": choices,
        "final": records.finals(final),
        "verdicts": verdicts,
    }
    records.write_summary(folder / records.SUMMARY, summary)
    print(f"results   {folder / records.RESULTS}, {folder / records.SUMMARY}")
    return sweep.exit_code([*tried, *final])


def _edges(choice: dict[str, Any], grid: paper.Trials) -> list[str]:
    return [] if choice["chosen"] is None else paper.on_edge(choice["chosen"], list(grid))


def _final_trials(preset: paper.Preset, choices: dict[str, Any], seeds: int) -> paper.Trials:
    """Each chosen setting with every seed and, where a flag is varied, every value of it."""
    trials = {}
    for server, choice in choices.items():
        if choice["chosen"] is None:
            continue
        setting = paper.setting_of(choice["chosen"])
        varied = [(n, v) for n, values in preset.vary.items() for v in values]
        own = varied if all(n in SERVERS[server] for n in preset.vary) else []
        for change in [dict([pair]) for pair in own] or [{}]:
            for seed in range(seeds):
                trials |= paper.trial(preset, {**setting, **change, "seed": seed})
    return trials


def _carry_over(tried: list[Record], trials: paper.Trials, folder: Path) -> None:
    """Takes what the grid has run already, seed 0 where the rounds are the same, as it is."""
    for name, config in trials.items():
        known = [one for one in tried if one["status"] != "failed" and records.is_of(one, config)]
        if known and not records.exists(folder, name):
            records.write(folder, {**known[0], "name": name})


def _named(stage: str, found: list[Record]) -> list[Record]:
    return [{**one, "stage": stage} for one in found]


def _draw(preset: paper.Preset, final: list[Record], folder: Path) -> None:
    """The figure in the paper's form, of the trials that have rows."""
    from experiments import plot

    paths = [folder / f"{preset.name}.{ending}" for ending in ("png", "svg")]
    drawn = [one for one in final if len(one["rows"]) > 1]
    if not drawn:
        return
    if not preset.vary:
        methods = {
            name.removeprefix("server="): [one["rows"] for one in members]
            for name, members in records.settings(drawn).items()
        }
        plot.draw_methods(methods, paths, preset.title, "round")
        return
    (name,) = preset.vary
    points, line = records.by_value(drawn, name)
    plot.draw_sensitivity(
        points, line, paths, preset.title, name, f"test {records.score(drawn[0])}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv))
