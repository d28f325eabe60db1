"""Ids of the characters of Shakespeare's plays, as TensorFlow Federated numbers them."""

from collections.abc import Sequence

import numpy as np

# Those of its release, in its order: 0 is padding, and the first character has the id 1.
_CHARACTERS = (
    "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
)
PADDING, UNKNOWN, BEGIN, END = 0, *range(len(_CHARACTERS) + 1, len(_CHARACTERS) + 4)
NUM_IDS = END + 1

_IDS = np.full(256, UNKNOWN, np.int32)  # by code; those beyond are unknown, as the last of these
_IDS[[ord(character) for character in _CHARACTERS]] = 1 + np.arange(len(_CHARACTERS))


def character_ids(texts: Sequence[str]) -> np.ndarray:
    """The ids int32 of the characters of all texts, one text after another."""
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), "<u4")
    return _IDS[np.minimum(codes, len(_IDS) - 1)]
