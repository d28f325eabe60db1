"""Debian's package lists: finding or downloading them, and their records."""

import contextlib
import gzip
import io
import lzma
import re
import subprocess
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

LISTS = Path("/var/lib/apt/lists")
_APT_HELPER = "/usr/lib/apt/apt-helper"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_OPENERS = {".gz": gzip.open, ".xz": lzma.open}


@contextlib.contextmanager
def lists(suite: str | None, files: Sequence[str]) -> Iterator[list[Path]]:
    """The files to read, sorted; downloaded ones exist within the block."""
    if files:
        yield sorted(map(Path, files))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = LISTS if suite is None else _fetched(suite, Path(temporary))
        pattern = re.compile(r".*_(Packages|Translation-en)(\.[a-z0-9]+)?")
        found = sorted(path for path in folder.glob("*") if pattern.fullmatch(path.name))
        for kind in ("Packages", "Translation-en"):
            if not any(f"_{kind}" in path.name for path in found):
                raise ValueError(
                    f"{folder}: expected at least one {kind} file (or --fetch), found none"
                )
        yield found


def records(path: Path) -> Iterator[dict[str, str]]:
    """The records of a file: field -> text, its further lines stripped and joined by newlines."""
    wanted = {"Package", "Maintainer", "Original-Maintainer", "Tag"}
    wanted |= {"Description", "Description-en", "Description-md5"}
    record, name = {}, ""
    try:
        with _text(path) as file:
            for number, line in enumerate(file, start=1):
                field, colon, value = line.partition(":")
                if not line.endswith("\n"):
                    raise ValueError(f"line {number}: expected a whole line, found no newline")
                if line == "\n":
                    yield record
                    record, name = {}, ""
                elif line[0] in " \t" and name:
                    if name in wanted:
                        record[name] += "\n" + line.strip()
                elif colon and not line[0].isspace():
                    name = field
                    if name in wanted:
                        record[name] = value.strip()
                else:
                    raise ValueError(f"line {number}: expected FIELD: TEXT, found {line[:40]!r}")
            yield record
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"{path}: expected a whole compressed file, found {error}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


@contextlib.contextmanager
def _text(path: Path) -> Iterator[TextIO]:
    """Opens a list, plain or compressed."""
    if path.suffix not in (".lz4", ".zst"):
        with _OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8", newline="\n") as file:
            yield file
        return
    path.open("rb").close()  # raises the usual OSError
    command = [_APT_HELPER, "cat-file", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        with io.TextIOWrapper(process.stdout, encoding="utf-8", newline="\n") as file:
            yield file
        problem = process.stderr.read().decode(errors="replace").strip()
    if process.returncode:
        raise ValueError(
            f"{_APT_HELPER}: expected a readable list, found {' '.join(problem.split())}"
        )


def _fetched(suite: str, folder: Path) -> Path:
    """Downloads the lists of a Debian suite with apt; returns their folder."""
    if not re.fullmatch(r"[a-z][a-z0-9-]*", suite):
        raise ValueError(f"--fetch: expected a Debian suite such as bookworm, found {suite!r}")
    if not _KEYRING.exists():
        raise ValueError(
            f"--fetch: expected {_KEYRING} (package debian-archive-keyring), found none"
        )
    lists, sources = folder / "lists", folder / "sources.list"
    (lists / "partial").mkdir(parents=True)
    folder.chmod(0o755)  # apt downloads as a user of its own
    origin = "http://deb.debian.org/debian"
    sources.write_text(f"deb [arch=amd64 signed-by={_KEYRING}] {origin} {suite} main\n")
    options = {
        "Acquire::Languages": "en",
        "APT::Update::Error-Mode": "any",
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": lists,
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
    }
    given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    done = subprocess.run(["apt-get", *given, "-q", "update"], capture_output=True, text=True)
    if done.returncode:
        problem = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise OSError(f"--fetch={suite}: expected apt-get update to succeed, found {problem[:300]}")
    return lists
