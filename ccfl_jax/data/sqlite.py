"""SQLite databases from outside, plain or compressed: opened read-only, and checked first."""

import contextlib
import hashlib
import lzma
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_CHUNK = 1 << 20


def decompressed(source: Path, folder: Path) -> Path:
    """The database itself: `source`, or what it holds, which is put into `folder` once."""
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
                with lzma.open(source) as packed, part.open("xb") as plain:
                    _copy_database(packed, plain, source)
            except (ValueError, lzma.LZMAError, EOFError) as error:
                raise ValueError(f"{source}: {error}") from error
            part.replace(target)
    return target


def _copy_database(packed: BinaryIO, plain: BinaryIO, source: Path) -> None:
    """Copies a database of just the size that its header gives, if there is room for it."""
    piece, folder = packed.read(100), Path(plain.name).parent.parent
    size, free = _database_size(piece), shutil.disk_usage(folder).free
    if size > free:
        raise OSError(f"{source}: needs {size} bytes in {folder}, which has {free} left")
    while piece and plain.tell() <= size:
        plain.write(piece)
        piece = packed.read(_CHUNK)
    if plain.tell() != size:
        raise ValueError(f"holds {plain.tell()} bytes or more, its header says {size}")


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
    """Opens `path` read-only and checked; what goes wrong in the block is said of `source`."""
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
            for setting in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON"):
                db.execute(f"PRAGMA {setting}")
            _check_tables(db, columns)
            yield db
    except (sqlite3.Error, ValueError) as error:
        raise ValueError(f"{source}: {error}") from error


def _check_tables(db: sqlite3.Connection, columns: dict[str, set[str]]) -> None:
    for table, needed in columns.items():
        kind = "SELECT type = 'table' AND rootpage > 0 FROM sqlite_master WHERE name = ?"
        if db.execute(kind, (table,)).fetchone() != (1,):  # a view or a virtual table runs code
            raise ValueError(f"has no table {table}")
        missing = needed - {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
        if missing:
            raise ValueError(f"its table {table} has no column {', '.join(sorted(missing))}")
