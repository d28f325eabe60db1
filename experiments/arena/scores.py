"""The table of a comparison: scores of the seeds, and what it took to a target."""

from collections.abc import Sequence

from ..sweeps import reached, selection
from ..sweeps.results import Record


def table(final: Sequence[Record], target: str | None) -> list[dict[str, str]]:
    """A row for each method, the best first: mean and standard error over its seeds.

    Scores are means over the last fifth of the rounds; with a target, the rounds, client updates,
    bytes sent, virtual hours and seconds of training until a row first reaches it, means over the
    seeds, where all have such a row.
    """
    rows = [_row(name, own, target) for name, own in selection.by_method(final).items()]
    return [row for _, row in sorted(rows, key=lambda pair: -pair[0])]


def _row(method: str, own: list[Record], target: str | None) -> tuple[float, dict[str, str]]:
    varied = {n: v for n, v in own[0].varied.items() if n not in ("method", "seed")}
    row = {"method": method, **{name: "" for name in ("local_lr", "server_lr", "eps")}, **varied}
    test, held = (selection.score(own, part) for part in ("test", "validation"))
    row |= {"test": str(test), "held out": str(held)}
    row |= reached.columns([one.rows for one in own], target)
    return selection.goodness(own, "test"), row
