"""Samples that a user's own function returns."""

from typing import Any

import numpy as np

from ccfl_jax.checks import naming
from ccfl_jax.data import arrays
from ccfl_jax.data.readers.samples import clients, count_classes
from ccfl_jax.io import own_code


def load_python(text: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], int | None]:
    """Loads the data that a function of one's own returns.

    It returns `(train, test)`, or `(task, train, test)`: dicts of arrays `[N, ...]` with the same
    names; train may also have "client" `[N]`, whose each row is. Partitions by labels need "y".

    Args:
        text: `MODULE:FUNCTION` or `FILE.py:FUNCTION`, called without arguments.

    Returns:
        train, test; and the number of classes, None where "y" `[N]` is no labels.

    Raises:
        ValueError: in one line with the array, for anything else.

    Examples:
        >>> import pathlib
        >>> part = "dict(x=np.zeros((4, 2)), y=np.array([0, 1, 0, 2]))"
        >>> code = f"import numpy as np; numbers = lambda: ({part}, {part})"
        >>> _ = pathlib.Path("own_data.py").write_text(code)
        >>> train, test, num_classes = ccfl.data.load_python("own_data.py:numbers")
        >>> train["x"].shape, num_classes
        ((4, 2), 3)
    """
    found = own_code.called(text)
    with naming(text):
        if not isinstance(found, tuple) or len(found) not in (2, 3):
            raise ValueError(
                "expected (train, test) or (task, train, test), dicts of arrays, found "
                f"{type(found).__name__}"
            )
        ids = found[-2].get("client") if isinstance(found[-2], dict) else None  # texts, perhaps
        train, test = (_arrays(part) for part in found[-2:])
        if {*train} != {*test}:
            raise ValueError(
                f"expected the same arrays in train and test, found {', '.join(sorted(train))} and "
                f"{', '.join(sorted(test))}"
            )
        if ids is not None:
            train["client"] = clients("client", np.asarray(ids), arrays.num_rows(train))
        labels = [part.get("y") for part in (train, test)]
        has_labels = all(y is not None and y.ndim == 1 and y.dtype.kind in "biu" for y in labels)
        return train, test, count_classes("y", train, test) if has_labels else None


def _arrays(part: Any) -> dict[str, np.ndarray]:
    """What a task sees of a part."""
    own = part if not isinstance(part, dict) else {n: a for n, a in part.items() if n != "client"}
    return {name: np.asarray(a) for name, a in arrays.samples(own).items()}
