"""The tests' `README.md` answers every fault that people met in other simulators."""

import re
from pathlib import Path

HERE = Path(__file__).parents[1]
NUMBERS = {
    "PT": (3, 4, 6, 7, 9, 10, 11, 12),
    "SO": (4, 5, 6, 8, 9, 10, 11, 13),
    "LT": (1, 2, 6, 7, 8, 9, 11, 13),
    "AS": (4, 5, 6, 7, 8, 10, 11, 12),
    "RR": (2, 4, 5, 6, 8, 9, 11, 12),
    "MC": (2, 3, 4, 5, 7, 8, 9, 10),
    "ME": (2, 3, 4, 7, 9),
    "NU": (3, 4, 5, 6, 7, 9, 10),
    "MD": (2, 4, 5, 7, 8),
    "CF": (3, 4, 6, 7, 8),
    "DS": (2, 3, 6, 7),
    "NF": (1, 3, 5, 7, 9, 11, 13, 15, 17, 18, 20, 21, *range(23, 28), *range(29, 39)),
    "OF": range(1, 21),
}
IDS = [f"{kind}-{number:02d}" for kind, numbers in NUMBERS.items() for number in numbers]


def listed():
    """The id of each row of the README's tables, and the text after it."""
    return re.findall(r"^\| ([A-Z]{2}-\d\d) \| (.+) \|$", (HERE / "README.md").read_text(), re.M)


def test_every_case_is_listed_once_and_in_order():
    assert [name for name, _ in listed()] == IDS


def test_every_test_that_the_list_names_exists():
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (HERE / "README.md").read_text())
    assert len(named) > len(IDS)
    text = {file: (HERE / file).read_text() for file, _ in named}
    assert not [name for file, name in named if f"\ndef {name}(" not in text[file]]


def test_every_case_has_a_test_or_a_decision():
    for name, row in listed():
        case, thread, held = row.split(" | ")
        assert case and re.fullmatch(r"\S+/\S+#\d+(, \S+/\S+#\d+)*", thread), name
        assert ".py::test_" in held or held.startswith("Decision: "), name
