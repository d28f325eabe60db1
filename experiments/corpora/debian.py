"""Examples for tag prediction from Debian's package lists."""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from .apt_lists import records
from .stackoverflow_files import Example

_TOKEN = re.compile(r"[a-z]+://\S*[^\s.,;:!?()<>\"']|[a-z0-9'-]+|[^\sa-z0-9'-]")


def read_examples(files: Iterable[Path]) -> list[Example]:
    """The examples of the files Packages and Translation-en, in the order of the packages' names.

    Raises:
        OSError: a file cannot be opened.
        ValueError: a file is damaged, or no record has tags, or none a long description.
    """
    packages, long_ones = {}, {}
    for path in files:
        for record in records(path):
            if "Tag" in record and "Package" in record:
                packages.setdefault(record["Package"], record)
            elif "Description-md5" in record and "Description-en" in record:
                long_ones.setdefault(record["Description-md5"], record["Description-en"])
    if not packages:
        raise ValueError(
            "lists: expected packages with the field Tag (a Debian suite has them), found none"
        )
    clients, seen, examples = {}, Counter(), []
    for name, record in sorted(packages.items()):
        maintainer = record.get("Original-Maintainer") or record.get("Maintainer")
        if not maintainer:
            raise ValueError(f"package {name!r:.100}: expected a field Maintainer, found none")
        client = clients.setdefault(maintainer, len(clients))
        split = "test" if seen[client] % 5 == 4 else "train"
        seen[client] += 1
        text = long_ones.get(record.get("Description-md5"), record.get("Description", ""))
        title, _, body = text.partition("\n")
        examples.append(
            Example(
                split="heldout" if client % 10 == 0 else split,
                client=client,
                title=tokens(title),
                body=tokens(re.sub(r"(?m)^\.$", "", body)),  # a lone full stop is an empty line
                tags=_tags(name, record["Tag"]),
            )
        )
    if not any(example.body for example in examples):
        raise ValueError(
            "lists: expected long descriptions (in files Translation-en, or --fetch=SUITE), found "
            "none"
        )
    return examples


def tokens(text: str) -> list[str]:
    """The words and punctuation marks of a text, as the Stack Overflow release has them."""
    plain = text.lower().encode("ascii", "ignore").decode()
    return ["<URL>" if "://" in token else token for token in _TOKEN.findall(plain)]


def _tags(package: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(re.fullmatch(r"[^\s|{}]+", name) for name in names):
        raise ValueError(
            f"package {package!r:.100}: expected names and commas as Tag, found {text!r:.300}"
        )
    return names
