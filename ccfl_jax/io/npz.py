"""npz files that are not trusted: arrays of numbers alone, of a bounded size."""

import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from reprlib import repr as shortened

import numpy as np

from ccfl_jax.checks import one_line

_LARGEST = 1 << 31  # bytes of all arrays in a file: a schedule of 165 million slots


def read_npz(
    path: str | os.PathLike,
    needed: Sequence[str],
    optional: Sequence[str] | None = (),
    most: int | None = None,
) -> dict[str, np.ndarray]:
    """The arrays of an npz file by name; never unpickles.

    Args:
        path: the file.
        needed: names of the arrays it must have.
        optional: names of further arrays it may have; None: any.
        most: bytes that all arrays together may unpack to; 2**31 by default.

    Raises:
        OSError: if there is no such file, or it cannot be read.
        ValueError: in one line, if it is no npz, arrays are missing or unknown, one is not of
            booleans, integers or floats, or all together unpack to more than `most` bytes. The
            message does not name the file.
    """
    with _reading(), zipfile.ZipFile(path) as file:
        members = file.infolist()
    _check_members(members, needed, optional, most or _LARGEST)
    with _reading(), np.load(path, allow_pickle=False) as file:
        damaged = file.zip.testzip()  # an array with a smaller shape is not read to its end
        if damaged:
            raise zipfile.BadZipFile(f"{damaged} has another checksum")
        arrays = {name: file[name] for name in file.files}
    for name, array in arrays.items():
        kind = array.dtype.kind if isinstance(array, np.ndarray) else "none"
        if kind not in "biuf":
            raise ValueError(f"{name}: expected booleans, integers or floats, found others")
        if kind == "b" and array.view(np.uint8).max(initial=0) > 1:
            raise ValueError(f"{name}: expected booleans of the bytes 0 and 1, found others")
    return arrays


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # damaged files raise many kinds, MemoryError too
        text = one_line(str(error)) or type(error).__name__
        raise ValueError(f"expected an npz file, found {text}") from None


def _check_members(
    members: list[zipfile.ZipInfo], needed: Sequence[str], optional: Sequence[str] | None, most: int
) -> None:
    """Checks the zip's directory, before anything is unpacked."""
    names = [info.filename for info in members]
    missing = sorted({*needed} - {name.removesuffix(".npy") for name in names})
    legal = names if optional is None else [f"{name}.npy" for name in (*needed, *optional)]
    unknown = sorted({*names} - {*legal})
    if missing or unknown or len({*names}) < len(names):
        beside = f" and optionally {', '.join(optional)}" if optional else ""
        raise ValueError(
            f"expected {[*needed]}{beside}, found missing {missing}, unknown {shortened(unknown)} "
            f"in {len(names)} arrays"
        )
    total = sum(info.file_size for info in members)
    if total > most:
        raise ValueError(f"expected at most {most} bytes, found {total}")
