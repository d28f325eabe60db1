"""Users with their samples in LEAF's JSON: FEMNIST, Shakespeare, Sent140, Synthetic."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, NamedTuple

import numpy as np

from ccfl_jax.checks import is_whole, naming
from ccfl_jax.data.readers import characters, samples
from ccfl_jax.io.files import as_json

_IMAGE = (28, 28, 1)  # FEMNIST's flat 784 numbers
_LENGTH = 80  # characters of a text of Shakespeare's
_FIELDS, _TWEET = 6, 4  # of a sample of Sent140: the fields, and which of them is the text
_WORDS, _VOCABULARY = 25, 10_000
_PADDING, _UNKNOWN = -1, -2


class _User(NamedTuple):
    """The samples of a user: arrays of n rows; of Sent140 "x" is a list of n texts."""

    x: Any
    y: np.ndarray


def load_leaf(
    folder: str | Path,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], int]:
    """Loads users and their samples from LEAF's files, as its `preprocess.sh` leaves them.

    `folder` has `train/*.json` and `test/*.json`, each an object of `users` (texts), `num_samples`
    (integers) and `user_data`, user -> {"x": [...], "y": [...]}. The users of training are the
    clients, numbered in the order of their names; a test user who is none of them, as after LEAF's
    split by users, has the number -1. What a sample is follows from the form of its "x":

    * numbers, as in FEMNIST and Synthetic: float32; 784 of them are an image `[28, 28, 1]`;
    * a text of 80 characters with the next one as "y", as in Shakespeare: `characters.py`'s ids,
      those of TensorFlow Federated, int32 `[80]`, and one as the label. LEAF's own program numbers
      80 characters in another way; one that has no number here is 87, "unknown";
    * six texts, as in Sent140, the fifth of which is the tweet: ids of its first 25 words, int32
      `[25]`, then -1. A word is a run of letters, digits and apostrophes, or one of `.,!?;`, as
      LEAF splits them. The 10,000 most frequent words of the training rows have the ids 0, 1, ...,
      of equals in the order of their characters; the others are -2. LEAF takes those of an
      embedding instead. Labels are 0 and 1.

    Returns:
        train, test: "x" `[N, ...]`, "y" int32 `[N]`, "client" int32 `[N]`, client by client.
        num_classes: 1 + the largest label; of texts 90, of tweets 2.

    Raises:
        FileNotFoundError: a part has no file.
        OSError: a file cannot be read.
        ValueError: in one line with the file, the user and the row: no such JSON, a user twice,
            or without samples, `num_samples` that are not theirs, samples of another form than
            the first, numbers that are not finite, labels that are no integers from 0.

    Examples:
        >>> import json, pathlib
        >>> user = {"x": [[0.5, 1.0], [1.5, 2.0]], "y": [0, 1]}
        >>> part = {"users": ["anna"], "num_samples": [2], "user_data": {"anna": user}}
        >>> for name in ("train", "test"):
        ...     pathlib.Path("leaf", name).mkdir(parents=True, exist_ok=True)
        ...     _ = pathlib.Path("leaf", name, "all.json").write_text(json.dumps(part))

        >>> train, test, num_classes = ccfl.data.load_leaf("leaf")
        >>> train["x"].tolist(), train["client"].tolist(), num_classes
        ([[0.5, 1.0], [1.5, 2.0]], [0, 0], 2)
    """
    folder = Path(folder)
    train, test = (_read(folder / name) for name in ("train", "test"))
    numbers = {user: number for number, user in enumerate(sorted(train))}
    is_tweets = isinstance(next(iter(train.values())).x, list)
    words = _vocabulary(train) if is_tweets else {}
    own, held = (_arrays(part, numbers, words) for part in (train, test))
    with naming(folder):
        samples.check_alike("test", own, held)
        if is_tweets:
            return own, held, 2
        is_text = own["x"].dtype == np.int32
        return own, held, characters.NUM_IDS if is_text else samples.count_classes("y", own, held)


def _read(folder: Path) -> dict[str, _User]:
    """The users of one part."""
    paths, users = sorted(folder.glob("*.json")), {}
    if not paths:
        raise FileNotFoundError(f"LEAF: expected .json files in {folder}, found none")
    for path in paths:
        found = as_json(path.read_bytes(), path, nan=True)
        with naming(path):
            for name, x, y in _users(found):
                place = f"user {shortened(name)}"
                if name in users:
                    raise ValueError(f"{place}: expected once in {folder}, found again")
                if x:
                    users[name] = _converted(place, x, y)
                    _check_alike(place, users[name], next(iter(users.values())))
                elif folder.name == "train":
                    raise ValueError(f"{place}: expected a sample at least, found none")
    if not users:
        raise ValueError(f"{folder}: expected a user with samples, found none")
    return users


def _users(found: Any) -> Iterator[tuple[str, list, list]]:
    """The names of a file's users with their samples, "x" and "y"."""
    kinds = {"users": list, "num_samples": list, "user_data": dict}
    for name, kind in kinds.items():
        value = found.get(name) if isinstance(found, dict) else None
        if not isinstance(value, kind):
            raise ValueError(f"{name}: expected a {kind.__name__}, found {shortened(value)}")
    names, counts, data = (found[name] for name in kinds)
    if len(names) != len(counts) or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"users: expected texts, as many as num_samples, {len(counts)}, found {len(names)}"
        )
    # LEAF's split by samples leaves users there whom it has dropped, without samples.
    for name in data.keys() - {*names}:
        if data[name] != {"x": [], "y": []}:
            raise ValueError(f"user_data: expected those of users, found {shortened(name)} too")
    for name, count in zip(names, counts, strict=True):
        own = data.get(name)
        x, y = (own.get(key) if isinstance(own, dict) else None for key in ("x", "y"))
        if not isinstance(x, list) or not isinstance(y, list):
            raise ValueError(f"user {shortened(name)}: expected lists x and y, found no such")
        if not is_whole(count) or not len(x) == len(y) == count:
            raise ValueError(
                f"user {shortened(name)}: expected {shortened(count)} samples, as in num_samples, "
                f"found {len(x)} of x and {len(y)} of y"
            )
        yield name, x, y


def _converted(place: str, x: list, y: list) -> _User:
    """A user's samples, in the form that the first has."""
    if isinstance(x[0], str):
        for row, (text, label) in enumerate(zip(x, y, strict=True)):
            if not (_is_text(text, _LENGTH) and _is_text(label, 1)):
                raise ValueError(
                    f"{place}: expected {_LENGTH} characters and the next, found "
                    f"{shortened(text)} and {shortened(label)} in row {row}"
                )
        ids = characters.character_ids(x).reshape(-1, _LENGTH)
        return _User(ids, characters.character_ids(y))
    is_tweet = isinstance(x[0], list) and any(isinstance(field, str) for field in x[0])
    most = 1 if is_tweet else None
    labels = samples.labels(f"{place}: y", _array(f"{place}: y", y), len(x), most)
    if is_tweet:
        for row, fields in enumerate(x):
            is_list = isinstance(fields, list) and len(fields) == _FIELDS
            if not is_list or not all(isinstance(field, str) for field in fields):
                raise ValueError(
                    f"{place}: expected {_FIELDS} texts, as of Sent140, found "
                    f"{shortened(fields)} in row {row}"
                )
        return _User([fields[_TWEET] for fields in x], labels)
    array = _array(f"{place}: x", x)
    array = samples.inputs(
        f"{place}: x", array.astype(float) if array.dtype.kind in "iu" else array
    )
    is_image = array.shape[1:] == (np.prod(_IMAGE),)
    return _User(array.reshape(-1, *_IMAGE) if is_image else array, labels)


def _is_text(value: Any, length: int) -> bool:
    return isinstance(value, str) and len(value) == length


def _array(place: str, rows: list) -> np.ndarray:
    try:
        return np.asarray(rows)
    except ValueError:  # inhomogeneous
        lengths = [len(row) if isinstance(row, list) else -1 for row in rows]
        other = next((k for k, length in enumerate(lengths) if length != lengths[0]), 0)
        raise ValueError(
            f"{place}: expected rows of one shape, found another in row {other}"
        ) from None


def _check_alike(place: str, user: _User, first: _User) -> None:
    """Raises ValueError for a user whose samples have another form than those of the first."""
    kinds = [
        "texts" if isinstance(one.x, list) else f"{one.x.dtype} {list(one.x.shape[1:])}"
        for one in (first, user)
    ]
    if kinds[0] != kinds[1]:
        raise ValueError(f"{place}: expected samples {kinds[0]}, as before, found {kinds[1]}")


def _split(text: str) -> list[str]:
    return re.findall(r"[\w']+|[.,!?;]", text)


def _vocabulary(users: dict[str, _User]) -> dict[str, int]:
    """word -> id of the most frequent words."""
    counts = Counter(word for user in users.values() for text in user.x for word in _split(text))
    ordered = sorted(counts, key=lambda word: (-counts[word], word))[:_VOCABULARY]
    return {word: number for number, word in enumerate(ordered)}


def _arrays(
    users: dict[str, _User], numbers: dict[str, int], words: dict[str, int]
) -> dict[str, np.ndarray]:
    """The arrays of a part, in the order of its users' names."""
    names = sorted(users)
    ordered = [users[name] for name in names]
    if isinstance(ordered[0].x, list):
        x = _word_ids([text for user in ordered for text in user.x], words)
    else:
        x = np.concatenate([user.x for user in ordered])
    clients = np.array([numbers.get(name, -1) for name in names], np.int32)
    return {
        "x": x,
        "y": np.concatenate([user.y for user in ordered]),
        "client": np.repeat(clients, [len(user.y) for user in ordered]),
    }


def _word_ids(texts: list[str], words: dict[str, int]) -> np.ndarray:
    ids = np.full((len(texts), _WORDS), _PADDING, np.int32)
    for row, text in enumerate(texts):
        own = [words.get(word, _UNKNOWN) for word in _split(text)[:_WORDS]]
        ids[row, : len(own)] = own
    return ids
