"""A Markdown table of finished runs: `python -m experiments.table RUN_FOLDER ...`."""

import json
import sys
from pathlib import Path

from ccfl_jax import record

_HEAD = ("method", "server_lr", "rounds", "test score", "rounds/s", "useful samples/s", "device")


def row(folder: str | Path) -> tuple[str, ...]:
    """One run's line: its method, final test accuracy, and rates of training without compilation.

    Raises:
        OSError, ValueError: if `folder` holds no run with at least one round.
    """
    config = json.loads((Path(folder) / record.CONFIG).read_text())
    last = record.read_rows(folder)[-1]
    if not last["round"]:
        raise ValueError(f"{folder}: found a run of 0 rounds, legal: at least one")
    score = "diverged" if last["diverged"] else f"{last[f'test_{record.score_name(last)}']:.3f}"
    rates = f"{last['round'] / last['seconds']:.2f}", f"{last['samples'] / last['seconds']:.0f}"
    environment = config["environment"]
    device = f"{environment['devices']} x {environment['device']}"
    return (
        config["server"],
        f"{config['server_lr']:g}",
        str(last["round"]),
        score,
        *rates,
        device,
    )


def main(folders: list[str]) -> int:
    """Prints the table of `folders`; returns the exit code."""
    try:
        rows = [row(folder) for folder in folders]
    except (OSError, ValueError) as error:
        print(f"table: {error}", file=sys.stderr)
        return 2
    for cells in (_HEAD, ("---",) * len(_HEAD), *rows):
        print("| " + " | ".join(cells) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
