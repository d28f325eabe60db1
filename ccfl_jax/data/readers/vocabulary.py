"""The word and tag counts of the Stack Overflow release, and the ids that follow from them."""

import json
from pathlib import Path

_LARGEST_LINE = 1 << 10
_LARGEST_JSON = 1 << 24


def read_word_ids(path: Path, vocabulary: int) -> dict[bytes, int]:
    """word -> id for the first `vocabulary` words."""
    ids, last = {}, None
    with path.open("rb") as file:
        while len(ids) < vocabulary and (line := file.readline(_LARGEST_LINE)):
            word, count = parts if len(parts := line.split()) == 2 else (b"", b"")
            falls = count.isdigit() and (last is None or int(count) <= last)
            if not falls or word in ids:
                raise ValueError(
                    f"{path}: expected a new word and a count not above the one before, found "
                    f"{line[:40]!r} in line {len(ids) + 1}"
                )
            ids[word], last = len(ids), int(count)
    if len(ids) < vocabulary:
        raise ValueError(
            f"{path}: expected at least vocabulary={vocabulary} words, found {len(ids)}"
        )
    return ids


def read_tag_ids(path: Path, num_tags: int) -> dict[bytes, int]:
    """tag -> id for the `num_tags` most frequent tags."""
    if path.stat().st_size > _LARGEST_JSON:
        raise ValueError(
            f"{path}: expected at most {_LARGEST_JSON} bytes, found {path.stat().st_size}"
        )
    try:
        found = json.loads(path.read_bytes())
        counts = {tag.encode(): n for tag, n in found.items()} if type(found) is dict else None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected a JSON object of integers, found {error}") from None
    if counts is None or any(type(n) is not int for n in counts.values()):
        raise ValueError(f"{path}: expected a JSON object of integers, found other JSON")
    ordered = sorted(counts, key=lambda tag: (-counts[tag], tag))[:num_tags]
    ids = {tag: number for number, tag in enumerate(ordered)}
    if len(ids) < num_tags:
        raise ValueError(f"{path}: expected at least num_tags={num_tags} tags, found {len(ids)}")
    return ids
