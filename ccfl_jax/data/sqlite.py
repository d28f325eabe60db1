"""SQLite databases from outside, plain or compressed: opened read-only, and checked first."""

import contextlib
import hashlib
import lzma
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from ccfl_jax.checks import one_line

_CHUNK = 1 << 20
_DECODER_MEMORY = 1 << 28  # bytes; a file packed by `xz -9` asks for a quarter of it
_SMALL, _RATIO = 1 << 26, 100
_STEPS = 10_000
_SETTINGS = (
    "trusted_schema = OFF",
    "query_only = ON",
    "cell_size_check = ON",
    "mmap_size = 0",
    "temp_store = MEMORY",  # sorting writes no file
)


def decompressed(source: Path, folder: Path) -> Path:
    """The database itself: `source`, or what it holds, which is put into `folder` once.

    What a compressed file claims is bounded before it is unpacked: by the room in `folder`, and by
    a hundred times its own size (texts take a tenth to a fifth), or 64 MiB if that is more. It then
    has to unpack to just the size that the database's header gives. Its decoder gets 256 MiB.
    """
    if source.suffix == ".sqlite":
        return source
    stat, folder = source.stat(), folder.expanduser()
    identity = os.fsencode(f"{source.resolve()} {stat.st_size} {stat.st_mtime_ns}")
    name = f"{source.name.partition('.')[0]}-{hashlib.sha256(identity).hexdigest()[:16]}"
    target = folder / f"{name}.sqlite"
    if not target.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as workshop:
            part = Path(workshop) / name
            try:
                with source.open("rb") as packed, part.open("xb") as plain:
                    _copy_database(packed, plain, source)
            except (ValueError, lzma.LZMAError, EOFError) as error:
                raise ValueError(f"{source}: {error}") from error
            part.replace(target)
    return target


def _copy_database(packed: BinaryIO, plain: BinaryIO, source: Path) -> None:
    """Copies a database of just the size that its header gives, if that is legal."""
    pieces, head, folder = _unpacked(packed), b"", Path(plain.name).parent.parent
    for piece in pieces:
        head += piece
        if len(head) >= 100:
            break
    size, free = _database_size(head), shutil.disk_usage(folder).free
    most = max(_SMALL, _RATIO * source.stat().st_size)
    if size > most:
        raise ValueError(
            f"found a header of {size} bytes, legal: {most} in a packed file this small"
        )
    if size > free:
        raise OSError(f"{source}: needs {size} bytes in {folder}, which has {free} left")
    plain.write(head)
    for piece in pieces:
        if plain.tell() > size:
            break
        plain.write(piece)
    if plain.tell() != size:
        raise ValueError(f"holds {plain.tell()} bytes or more, its header says {size}")


def _unpacked(packed: BinaryIO) -> Iterator[bytes]:
    """What an .xz or .lzma file holds, all its streams, in pieces of up to `_CHUNK`."""
    data = packed.read(_CHUNK)
    while True:
        decoder = lzma.LZMADecompressor(memlimit=_DECODER_MEMORY)
        while not decoder.eof:
            if decoder.needs_input and not data:
                data = packed.read(_CHUNK)
                if not data:
                    raise EOFError("ends before its end-of-stream marker")
            yield decoder.decompress(data, _CHUNK)
            data = b""
        data = decoder.unused_data.lstrip(b"\0")  # zeros may stand between streams
        while not data and (more := packed.read(_CHUNK)):
            data = more.lstrip(b"\0")
        if not data:
            return


def _database_size(head: bytes) -> int:
    """The bytes of a database of which `head` is the header."""
    if len(head) < 100 or head[:16] != b"SQLite format 3\0":
        raise ValueError("is no SQLite database")
    if head[24:28] != head[92:96]:  # as written by SQLite before 3.7
        raise ValueError("its header does not give its size; SQLite's VACUUM puts that right")
    page = int.from_bytes(head[16:18], "big")
    return (65536 if page == 1 else page) * int.from_bytes(head[28:32], "big")


@contextlib.contextmanager
def open_database(
    path: Path, source: Path, columns: dict[str, set[str]], largest_row: int
) -> Iterator[sqlite3.Connection]:
    """Opens `path` read-only and checked; what goes wrong in the block is said of `source`.

    Nothing is written, nothing that the file defines is run, and its tables are plain ones with the
    columns asked for; SQLite's columns take values of any type, so whoever reads one checks it. The
    steps of all queries together are bounded by the file's size: its pages may be linked so that
    there is no end of rows.

    Args:
        path: of the database.
        source: the file it came from.
        columns: table -> the columns it must have.
        largest_row: the most bytes of a row.

    Raises:
        ValueError: naming `source`, for any of it.
        OSError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            size, found = _database_size(file.read(100)), file.seek(0, os.SEEK_END)
        if found != size:
            raise ValueError(f"has {found} bytes, its header says {size}")
        if any(Path(f"{path}{suffix}").exists() for suffix in ("-wal", "-journal")):
            raise ValueError("has a -wal or -journal file beside it: somebody is writing to it")
        uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as db:
            db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, largest_row)
            for setting in _SETTINGS:
                db.execute(f"PRAGMA {setting}")
            db.set_progress_handler(_budget(size), _STEPS)
            _check_tables(db, columns)
            yield db
    except sqlite3.Error as error:
        # SQLite's own texts may quote what is in the file, line breaks and all.
        text = one_line(str(error), 200)
        if text == "interrupted":
            text = "found no end of rows, legal: as many as its size allows"
        raise ValueError(f"{source}: {text}") from error
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def _budget(size: int) -> Callable[[], bool]:
    """Says, called every `_STEPS` steps of SQLite's machine, whether that is enough.

    A visit to a row takes up to 20 steps, a row 12 bytes or more, and a few queries visit it.
    """
    left = iter(range(100 + 10 * size // _STEPS))
    return lambda: next(left, None) is None


def file_size(db: sqlite3.Connection) -> int:
    """The bytes of an open database."""
    pages, page = (db.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    return pages[0] * page[0]


def _check_tables(db: sqlite3.Connection, columns: dict[str, set[str]]) -> None:
    for table, needed in columns.items():
        # A view or a virtual table runs code; SQLite itself compares type and name with the text.
        kind = (
            "SELECT type = 'table' AND rootpage > 0 AND sql LIKE 'CREATE TABLE %' "
            "FROM sqlite_master WHERE name = ?"
        )
        if db.execute(kind, (table,)).fetchone() != (1,):
            raise ValueError(f"has no table {table}")
        missing = needed - {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
        if missing:
            raise ValueError(f"its table {table} has no column {', '.join(sorted(missing))}")
