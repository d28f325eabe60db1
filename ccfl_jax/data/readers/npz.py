"""Samples in one npz file."""

from pathlib import Path

import numpy as np

from ccfl_jax.checks import naming
from ccfl_jax.data.readers import samples
from ccfl_jax.io.npz import read_npz

_LARGEST = 1 << 36  # bytes of all arrays together


def load_npz(
    path: str | Path,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], int]:
    """Loads a user's own data from an npz file, as `np.savez` writes it.

    Its arrays are `x_train` `[N, ...]`, `y_train` `[N]`, `x_test`, `y_test` and perhaps
    `client_train` `[N]`, an integer for each training row: rows with the same one are a client's.
    Keras's mnist.npz is such a file. Dtypes are as `readers.samples.inputs` and `labels` say.

    Returns:
        train, test: "x" float32, uint8 or int32 `[N, ...]`, "y" int32 `[N]`; with `client_train`
        train has "client" int32 `[N]`, numbered from 0 as the ids ascend.
        num_classes: 1 + the largest label.

    Raises:
        OSError: there is no such file, or it cannot be read.
        ValueError: in one line with the file, the array and the row: it is no npz, an array is
            missing or unknown, has another length or shape than those beside it, labels that are no
            integers from 0, or numbers that are not finite; it unpacks to more than 64 GiB.

    Examples:
        >>> np.savez(
        ...     "own.npz",
        ...     x_train=np.zeros((4, 2)),
        ...     y_train=[0, 1, 0, 2],
        ...     x_test=np.ones((1, 2)),
        ...     y_test=[1],
        ...     client_train=[7, 7, 9, 9],
        ... )
        >>> train, test, num_classes = ccfl.data.load_npz("own.npz")
        >>> train["client"].tolist(), num_classes
        ([0, 0, 1, 1], 3)
    """
    with naming(path):
        arrays = read_npz(
            path, ["x_train", "y_train", "x_test", "y_test"], ["client_train"], _LARGEST
        )
        train, test = (_part(arrays, name) for name in ("train", "test"))
        if "client_train" in arrays:
            ids = arrays["client_train"]
            train["client"] = samples.clients("client_train", ids, len(train["y"]))
        samples.check_alike("x_test", train, test)
        return train, test, samples.count_classes("y", train, test)


def _part(arrays: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    x = samples.inputs(f"x_{name}", arrays[f"x_{name}"])
    return {"x": x, "y": samples.labels(f"y_{name}", arrays[f"y_{name}"], len(x))}
