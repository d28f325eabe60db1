"""The paper's claims: whether they hold, by margins in points, paired by seed."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ..sweeps import selection
from ..sweeps.results import Record
from .presets import Preset


def judge(preset: Preset, final: Sequence[Record]) -> list[dict[str, Any]]:
    """The claims of an experiment against its final trials.

    The scores are means over the last fifth of the rounds (of a claim about `at`: the fifth before
    that share of them). A margin is the mean over seeds of the difference at the same seed, in
    points; its spread is the sample standard deviation over seeds, None with fewer than two.

    Returns:
        For each claim `claim` (a sentence), `margins` (setting -> margin, spread) and `holds`;
        a margin is None where a trial diverged or failed, and the claim then does not hold; it is
        None, not judged, where one of the sides was not run.
    """
    return [_judge(preset, claim, final) for claim in preset.claims]


def line(verdict: Mapping[str, Any]) -> str:
    """A verdict in one line of text."""
    margins = []
    for setting, (margin, spread) in verdict["margins"].items():
        spread = "" if spread is None else f" (spread {spread:.1f})"
        margins.append(f"{setting} " + ("none" if margin is None else f"{margin:+.1f}{spread}"))
    ruling = {True: "holds", False: "does NOT hold", None: "not judged"}[verdict["holds"]]
    return f"{verdict['claim']}: {'; '.join(margins)}: {ruling}"


def _judge(preset: Preset, claim: Mapping[str, Any], final: Sequence[Record]) -> dict[str, Any]:
    part, at, points = claim.get("part", "test"), claim.get("at", 1.0), claim["points"]
    base = _by_seed([one for one in final if _server(one) == claim["than"]], part, at)
    margins = {}
    for members in selection.settings(final).values():
        if _server(members[0]) in claim["better"] and _in_range(preset, claim, members[0]):
            margins[_short(preset, members[0])] = _margin(_by_seed(members, part, at), base)
    holds = all(m is not None and m > points for m, _ in margins.values())
    if not (margins and base):
        holds = None
    where = "" if at == 1.0 else f" at {at:.0%} of the rounds"
    sentence = (
        f"{part} of {', '.join(claim['better'])} above {claim['than']} by over {points} points"
    )
    return {
        "claim": sentence + where + _range_text(preset, claim),
        "margins": margins,
        "holds": holds,
    }


def _by_seed(members: Sequence[Record], part: str, at: float) -> dict[int, float | None]:
    return {one.config["seed"]: selection.tail_mean(one, part, at) for one in members}


def _margin(
    scores: Mapping[int, float | None], base: Mapping[int, float | None]
) -> tuple[float | None, float | None]:
    pairs = [(scores[seed], base.get(seed)) for seed in scores]
    if not pairs or any(None in pair for pair in pairs):
        return None, None
    differences = [100 * (a - b) for a, b in pairs]
    spread = statistics.stdev(differences) if len(differences) > 1 else None
    return statistics.fmean(differences), spread


def _in_range(preset: Preset, claim: Mapping[str, Any], one: Record) -> bool:
    for name in preset.vary:
        value = one.config[name]
        return claim.get("from", float("-inf")) <= value <= claim.get("to", float("inf"))
    return True


def _range_text(preset: Preset, claim: Mapping[str, Any]) -> str:
    limits = [f"{word} {claim[word]:g}" for word in ("from", "to") if word in claim]
    return "".join(f" for {name} {' '.join(limits)}".rstrip() for name in preset.vary)


def _short(preset: Preset, one: Record) -> str:
    varied = [f"{name}={one.varied[name]}" for name in preset.vary if name in one.varied]
    return " ".join([_server(one), *varied])


def _server(one: Record) -> str:
    return one.config["server"]
