"""Reading npz files that nobody vouches for: arrays of numbers, and no more memory than they say.

NumPy's own reader evaluates the header and allocates what it claims before it reads a number; here
the header has to be just what NumPy writes, and sizes are compared before anything is unpacked.
"""

import math
import os
import re
import zipfile
import zlib
from collections.abc import Sequence
from reprlib import repr as shortened

import numpy as np

from ccfl_jax.checks import one_line

_LARGEST = 1 << 31  # bytes of all arrays in a file: a schedule of 165 million slots
_HEADER = re.compile(
    rb"\x93NUMPY\x01\0(?P<length>..)\{'descr': '(?P<dtype>[<>|][biuf][1248])', "
    rb"'fortran_order': (?P<order>False|True), 'shape': \((?P<shape>[\d, ]*)\), \} *\n",
    re.DOTALL,
)


def read_npz(
    path: str | os.PathLike,
    needed: Sequence[str],
    optional: Sequence[str] | None = (),
    most: int | None = None,
) -> dict[str, np.ndarray]:
    """The arrays of an npz file by name; never unpickles.

    Args:
        path: the file.
        needed: arrays it must have.
        optional: arrays it may have; it may have no other. None: any.
        most: bytes that all arrays together may unpack to; 2^31 by default.

    Raises:
        OSError: if there is no such file, or it cannot be read.
        ValueError: in one line, if it is no npz, arrays are missing or unknown, one is not of
            booleans, integers or floats as NumPy writes them, or all together unpack to more than
            `most` bytes. The message does not name the file.
    """
    try:
        with zipfile.ZipFile(path) as file:
            members = file.infolist()
            _check_members(members, needed, optional, most or _LARGEST)
            return {i.filename.removesuffix(".npy"): _read_npy(file, i) for i in members}
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ValueError(f"not a readable npz ({one_line(str(error))})") from None
    except ValueError as error:
        raise ValueError(one_line(str(error))) from None


def _check_members(
    members: list[zipfile.ZipInfo], needed: Sequence[str], optional: Sequence[str] | None, most: int
) -> None:
    names = [info.filename for info in members]
    missing = sorted({*needed} - {name.removesuffix(".npy") for name in names})
    legal = names if optional is None else [f"{name}.npy" for name in (*needed, *optional)]
    unknown = sorted({*names} - {*legal})
    if missing or unknown or len({*names}) < len(names):
        beside = f" and optionally {', '.join(optional)}" if optional else ""
        raise ValueError(
            f"found missing {missing}, unknown {shortened(unknown)} in {len(names)} arrays, "
            f"legal: {[*needed]}{beside}"
        )
    total = sum(info.file_size for info in members)
    if total > most:
        raise ValueError(f"found arrays of {total} bytes, legal: up to {most}")


def _read_npy(file: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{info.filename}: found compression {info.compress_type}, legal: 0 and 8")
    with file.open(info) as member:
        data = member.read(info.file_size + 1)  # a bound: without one it unpacks 2 GiB at once
    header = _HEADER.match(data)
    if not header or int.from_bytes(header["length"], "little") + 10 != header.end():
        raise ValueError(f"{info.filename}: found no array of numbers as NumPy writes them")
    shape = [int(size) for size in re.findall(rb"\d+", header["shape"])]
    dtype = np.dtype(header["dtype"].decode())
    if math.prod(shape) * dtype.itemsize != len(data) - header.end():
        raise ValueError(
            f"{info.filename}: found {len(data) - header.end()} bytes, legal: as its shape "
            f"{shortened(tuple(shape))} of {dtype} needs"
        )
    array = np.frombuffer(data, dtype, offset=header.end())
    if dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
        raise ValueError(f"{info.filename}: found a bool that is neither 0 nor 1")
    return array.reshape(shape, order="F" if header["order"] == b"True" else "C")
