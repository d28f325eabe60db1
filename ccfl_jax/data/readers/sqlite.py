"""SQLite databases that are not trusted, plain or compressed: checked, and opened read-only."""

import contextlib
import hashlib
import lzma
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ccfl_jax.checks import naming, one_line


def decompressed(source: Path, folder: Path) -> Path:
    """The plain database: `source`, or its content, decompressed into `folder` once.

    Raises:
        ValueError: with `source`, where it is cut short or otherwise damaged.
        OSError: it cannot be read, or `folder` has no room.
    """
    if source.suffix == ".sqlite":
        return source
    stat, folder = source.stat(), folder.expanduser()
    identity = os.fsencode(f"{source.resolve()} {stat.st_size} {stat.st_mtime_ns}")
    name = f"{source.name.partition('.')[0]}-{hashlib.sha256(identity).hexdigest()[:16]}"
    target = folder / f"{name}.sqlite"
    if not target.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        # In its own folder, as several processes may do this at the same time.
        with tempfile.TemporaryDirectory(dir=folder) as workshop:
            part = Path(workshop) / name
            try:
                with naming(source), lzma.open(source) as packed, part.open("xb") as plain:
                    shutil.copyfileobj(packed, plain, 1 << 20)
            except (lzma.LZMAError, EOFError, MemoryError) as error:
                raise ValueError(f"{source}: {str(error) or type(error).__name__}") from None
            part.replace(target)
    return target


@contextlib.contextmanager
def open_database(
    path: Path, source: Path, columns: dict[str, set[str]]
) -> Iterator[sqlite3.Connection]:
    """Opens `path` read-only; errors in the block name `source`.

    Its tables are plain ones with the needed columns, and no code that the file defines is run.
    SQLite's columns take values of any type, so the caller checks those it reads.

    Args:
        path: of the database.
        source: the file it came from.
        columns: table -> the columns it must have.

    Raises:
        ValueError: with `source`, for a database that is not so, or an error in the block.
    """
    try:
        # `immutable`, which makes no file beside it, does not see changes in these.
        if any(Path(f"{path}{suffix}").exists() for suffix in ("-wal", "-journal")):
            raise ValueError("expected a database at rest, found a -wal or -journal file beside it")
        uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as db:
            db.execute("PRAGMA trusted_schema = OFF")
            db.execute("PRAGMA cell_size_check = ON")
            if file_size(db) != path.stat().st_size:
                size = path.stat().st_size
                raise ValueError(
                    f"expected {file_size(db)} bytes, as its header says, found {size}"
                )
            _check_tables(db, columns)
            yield db
    except sqlite3.Error as error:
        # SQLite's messages may quote the file, line breaks too.
        raise ValueError(f"{source}: {one_line(str(error), 200)}") from error
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def file_size(db: sqlite3.Connection) -> int:
    """The bytes of an open database, by its header."""
    pages, page = (db.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    return pages[0] * page[0]


def _check_tables(db: sqlite3.Connection, columns: dict[str, set[str]]) -> None:
    for table, needed in columns.items():
        # A view or a virtual table runs code; SQLite itself compares type and name with the text.
        kind = "SELECT type = 'table' AND sql LIKE 'CREATE TABLE %' FROM sqlite_master WHERE name=?"
        if db.execute(kind, (table,)).fetchone() != (1,):
            raise ValueError(f"expected a table {table}, found none")
        missing = needed - {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
        if missing:
            raise ValueError(
                f"table {table}: expected a column {', '.join(sorted(missing))}, found none"
            )
