"""A Markdown table of finished runs: `python -m experiments.table RUN_FOLDER ...`."""

import sys
from pathlib import Path
from typing import Any

from ccfl_jax import config_file, record
from ccfl_jax.folder import as_json
from experiments import arguments, records

_HEAD = ("method", "server_lr", "rounds", "test score", "rounds/s", "useful samples/s", "device")


def row(folder: str | Path) -> tuple[str, ...]:
    """One run's line: its method, final test accuracy, and rates of training without compilation.

    Raises:
        OSError, ValueError: if `folder` holds no run with at least one round.
    """
    server, server_lr, device = _settings(Path(folder) / config_file.CONFIG)
    rows, metrics = record.read_rows(folder), Path(folder) / record.METRICS
    records.check_rows(rows, metrics, ("seconds", "samples"))
    last = rows[-1]
    if not (last["round"] and last["seconds"] > 0):
        raise ValueError(
            f"{metrics}: found a run of {last['round']} rounds in {last['seconds']} s, legal: at "
            "least one"
        )
    value = last[f"test_{record.score_name(last)}"]
    score = "diverged" if value is None or last.get("diverged") else f"{value:.3f}"
    rates = f"{last['round'] / last['seconds']:.2f}", f"{last['samples'] / last['seconds']:.0f}"
    return server, server_lr, str(last["round"]), score, *rates, device


def _settings(path: Path) -> tuple[str, str, str]:
    """What a row says of a run's `config.json`."""
    config: Any = as_json(path.read_bytes(), path)
    try:
        where = config["environment"]
        cells = (
            f"{config['server']:s}",
            f"{config['server_lr']:g}",
            f"{where['devices']:d} x {where['device']:s}",
        )
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{path}: found no settings of a run ({error!r}), legal: server, server_lr and "
            "environment with devices and device"
        ) from None
    return cells


def main(argv: list[str]) -> int:
    """Prints the table of the folders in `argv`; returns the exit code."""
    parser = arguments.Parser(prog="table", description="A Markdown table of finished runs.")
    parser.add_argument("folders", nargs="+", type=Path)
    try:
        rows = [row(folder) for folder in arguments.read(parser, argv)[0].folders]
    except (OSError, ValueError) as error:
        print("table: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    for cells in (_HEAD, ("---",) * len(_HEAD), *rows):
        print("| " + " | ".join(" ".join(cell.split()) for cell in cells) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
