"""Reader of IDX files, the format of MNIST."""

import gzip
import io
import math
import zlib
from pathlib import Path

import numpy as np

_Opened = gzip.GzipFile | io.BufferedReader

_UINT8 = 0x08
_CHUNK = 1 << 20
_LARGEST = 1 << 30  # EMNIST ByClass, the largest of the published ones, has 547 million items


def read_idx(path: str | Path) -> np.ndarray:
    """Reads one IDX file of unsigned bytes, plain or gzip-compressed (told by its first bytes).

    The format: two zero bytes, a type code (0x08: uint8), the number of dimensions, then each
    dimension as a big-endian 32-bit number, then the items in row-major order.

    The header is not trusted: memory is taken as items are read, for at most as many as the header
    says. A plain file takes no more than its bytes; the header of a compressed one, which may be a
    thousandth of its content, may say 2**30 items at most.

    Returns:
        uint8 array of the file's shape.

    Raises:
        FileNotFoundError, OSError: the file cannot be opened.
        ValueError: it is not such a file, is cut short, has bytes after its last item, has no
            items, or too many for a compressed one. The message names the file.

    Examples:
        >>> import pathlib
        >>> head = bytes([0, 0, 8, 2]) + (2).to_bytes(4, "big") + (3).to_bytes(4, "big")
        >>> _ = pathlib.Path("images.idx").write_bytes(head + bytes(range(6)))
        >>> print(ccfl.data.read_idx("images.idx"))
        [[0 1 2]
         [3 4 5]]
    """
    path = Path(path)
    with path.open("rb") as raw:
        compressed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        with gzip.GzipFile(fileobj=raw) if compressed else raw as file:
            try:
                return _parse(file, _LARGEST if compressed else None)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise ValueError(f"{path}: expected a whole gzip file, found {error}") from error
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error


def _parse(file: _Opened, most: int | None) -> np.ndarray:
    head = _read(file, 4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] != _UINT8 or not 1 <= head[3] <= 8:
        raise ValueError(
            f"expected '00 00 08' and 1 to 8 dimensions, found the first bytes '{head.hex(' ')}'"
        )
    sizes = _read(file, 4 * head[3])
    if len(sizes) < 4 * head[3]:
        raise ValueError(f"expected a header of {head[3]} dimensions, found its end before")
    shape = tuple(np.frombuffer(sizes, ">u4").tolist())
    expected = math.prod(shape)
    if not expected:
        raise ValueError(f"expected at least one item, found the shape {shape}")
    if most is not None and expected > most:
        raise ValueError(
            f"expected at most {most} items in a compressed file (unpack a larger one first), "
            f"found the shape {shape}"
        )
    items = _read(file, expected)
    if len(items) < expected:
        raise ValueError(f"expected {expected} items of shape {shape}, found {len(items)}")
    if file.read(1):
        raise ValueError(f"expected {expected} items of shape {shape}, found bytes after them")
    return np.frombuffer(items, np.uint8).reshape(shape)


def _read(file: _Opened, limit: int) -> bytearray:
    # In pieces: a damaged header may claim more items than any memory holds.
    content = bytearray()
    while len(content) < limit and (piece := file.read(min(_CHUNK, limit - len(content)))):
        content += piece
    return content
