"""Writes a real tag-prediction corpus from apt's package lists, in Stack Overflow's file format.

    python -m experiments.debian_corpus --out_dir=FOLDER --fetch=bookworm

An example is a package that has debtags: its short description is the title, the long one the body,
its debtags (the field `Tag`) are the tags. A client is a maintainer (of Ubuntu's changed packages
the original one). A package that is listed more than once counts once: its first record with tags.
Debian's security updates have none, so that a stable suite gives the same corpus from one point
release to the next. Packages are taken by name, and clients numbered from 0 as they first appear;
no name or address is written.

Written to the folder, for `ccfl_jax.data.load_stackoverflow`:

* corpus.sqlite.xz: `examples(split_name, client_id, serialized_example_proto)` with an index on the
  first two, and `client_metadata(client_id, split_name, num_examples)`. A proto is a
  tf.train.Example with the texts creation_date, tags (joined by "|"), title, tokens and type, and
  the number score. As in the release, clients whose number is a multiple of 10 are the split
  `heldout`. Lists have no dates to cut at: of the other clients every fifth package is in `test`,
  the rest in `train`, and date, score and type are the same everywhere.
* word_count: a word a line with how many clients use it in a body of `train`, falling.
* tag_count: JSON, tag -> how many clients use it in `train`.

Texts are treated as the release's are: lower case, ASCII only, links replaced by <URL>, punctuation
apart from words, except apostrophes and hyphens.

The lists are files Packages and Translation-en (apt keeps the long descriptions in the latter),
plain or compressed as .gz, .xz or, with apt's own helper, .lz4 or .zst:

* --fetch=SUITE: apt downloads those of this Debian suite's `main` for amd64 into a temporary
  folder, whatever the machine's own release; Ubuntu first needs the package debian-archive-keyring;
* --packages FILE ...: these files;
* by default the machine's own in /var/lib/apt/lists. Containers often keep no Translation-en, and
  Ubuntu's own lists may have no debtags; both are refused.
"""

import contextlib
import gzip
import io
import json
import lzma
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TextIO

from ccfl_jax.data.tf_example import encode_example
from experiments import arguments

LISTS = Path("/var/lib/apt/lists")
OUTPUT = ("corpus.sqlite.xz", "word_count", "tag_count")
_APT_HELPER = "/usr/lib/apt/apt-helper"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_OPENERS = {".gz": gzip.open, ".xz": lzma.open}
_TOKEN = re.compile(r"[a-z]+://\S*[^\s.,;:!?()<>\"']|[a-z0-9'-]+|[^\sa-z0-9'-]")
_TABLES = """
    CREATE TABLE examples (
        split_name TEXT NOT NULL, client_id TEXT NOT NULL, serialized_example_proto BLOB NOT NULL);
    CREATE TABLE client_metadata (
        client_id TEXT NOT NULL, split_name TEXT NOT NULL, num_examples INTEGER NOT NULL);
"""


class Example(NamedTuple):
    """One package: its split, its client's number, its texts as tokens, its tags."""

    split: str
    client: int
    title: list[str]
    body: list[str]
    tags: list[str]


def main(argv: list[str]) -> int:
    """Runs the command line `argv`; 0, or 2 where it was refused."""
    parser = arguments.Parser(prog="debian_corpus")
    parser.add_argument("--out_dir", type=Path, required=True, help="folder for the three files")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--fetch", metavar="SUITE", help="Debian suite to download the lists of")
    source.add_argument(
        "--packages",
        metavar="FILE",
        type=Path,
        nargs="+",
        action="extend",
        help="Packages and Translation-en files; default: those in /var/lib/apt/lists",
    )
    try:
        asked, _ = arguments.read(parser, argv)
        there = [name for name in OUTPUT if (asked.out_dir / name).exists()]
        if there:
            raise ValueError(f"--out_dir: found {', '.join(there)}, legal: a folder without")
        with _lists(asked.fetch, asked.packages) as files:
            examples = read_examples(files)
        print(write(asked.out_dir, examples), f"from {len(files)} lists")
    except (OSError, ValueError) as error:
        print("debian_corpus: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


def read_examples(files: Iterable[Path]) -> list[Example]:
    """The examples of the files Packages and Translation-en, in the order of the packages' names.

    Raises:
        OSError: a file cannot be opened.
        ValueError: a file is damaged, or no record has tags, or none a long description.
    """
    packages, long_ones = {}, {}
    for path in files:
        for record in _records(path):
            if "Tag" in record and "Package" in record:
                packages.setdefault(record["Package"], record)
            elif "Description-md5" in record and "Description-en" in record:
                long_ones.setdefault(record["Description-md5"], record["Description-en"])
    if not packages:
        raise ValueError("lists: found no package with the field Tag, legal: of a Debian suite")
    clients, seen, examples = {}, Counter(), []
    for name, record in sorted(packages.items()):
        maintainer = record.get("Original-Maintainer") or record.get("Maintainer")
        if not maintainer:
            raise ValueError(f"package {name!r:.100}: found no field Maintainer, legal: one")
        client = clients.setdefault(maintainer, len(clients))
        split = "test" if seen[client] % 5 == 4 else "train"
        seen[client] += 1
        text = long_ones.get(record.get("Description-md5"), record.get("Description", ""))
        title, _, body = text.partition("\n")
        examples.append(
            Example(
                split="heldout" if client % 10 == 0 else split,
                client=client,
                title=tokens(title),
                body=tokens(re.sub(r"(?m)^\.$", "", body)),  # a lone full stop is an empty line
                tags=_tags(name, record["Tag"]),
            )
        )
    if not any(example.body for example in examples):
        raise ValueError(
            "lists: found no long description, legal: with files Translation-en (or --fetch=SUITE)"
        )
    return examples


def tokens(text: str) -> list[str]:
    """The words and punctuation marks of a text, as the Stack Overflow release has them."""
    plain = text.lower().encode("ascii", "ignore").decode()
    return ["<URL>" if "://" in token else token for token in _TOKEN.findall(plain)]


def write(folder: Path, examples: list[Example]) -> str:
    """Writes the three files of the corpus; returns a line that says what is in them."""
    folder.mkdir(parents=True, exist_ok=True)
    words, tags = defaultdict(set), defaultdict(set)
    for example in examples:
        if example.split == "train":
            for word in example.body:
                words[word].add(example.client)
            for tag in example.tags:
                tags[tag].add(example.client)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        workshop = Path(temporary)
        _write_database(workshop / "corpus.sqlite", examples)
        with (
            (workshop / "corpus.sqlite").open("rb") as plain,
            lzma.open(workshop / OUTPUT[0], "wb") as packed,
        ):
            shutil.copyfileobj(plain, packed, 1 << 20)
        ordered = sorted(words, key=lambda word: (-len(words[word]), word))
        lines = "".join(f"{word} {len(words[word])}\n" for word in ordered)
        (workshop / OUTPUT[1]).write_text(lines)
        counts = {tag: len(tags[tag]) for tag in sorted(tags)}
        (workshop / OUTPUT[2]).write_text(json.dumps(counts, indent=0) + "\n")
        for name in OUTPUT:
            (workshop / name).replace(folder / name)
    sizes = Counter(example.split for example in examples)
    splits = ", ".join(f"{split} {sizes[split]}" for split in ("train", "test", "heldout"))
    clients = len({example.client for example in examples})
    short = sum(not example.body for example in examples)
    return (
        f"{folder}: {clients} clients, {len(examples)} examples ({splits}), {len(tags)} tags and "
        f"{len(words)} words in train, {short} examples without a body,"
    )


def _write_database(path: Path, examples: list[Example]) -> None:
    # By client, so that reading one touches few pages.
    ordered = sorted(examples, key=lambda example: (example.split, example.client))
    sizes = Counter((f"{e.client:06d}", e.split) for e in ordered)
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.executescript(_TABLES)
        rows = ((e.split, f"{e.client:06d}", _message(e)) for e in ordered)
        db.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
        counts = [(client, split, size) for (client, split), size in sorted(sizes.items())]
        db.executemany("INSERT INTO client_metadata VALUES (?, ?, ?)", counts)
        db.execute("CREATE INDEX examples_by_client ON examples (split_name, client_id)")


def _message(example: Example) -> bytes:
    """The example as a serialised tf.train.Example."""
    texts = {
        "creation_date": "1970-01-01 00:00:00 UTC",
        "tags": "|".join(example.tags),
        "title": " ".join(example.title),
        "tokens": " ".join(example.body),
        "type": "question",
    }
    return encode_example({"score": [0], **{name: [text.encode()] for name, text in texts.items()}})


def _tags(package: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(re.fullmatch(r"[^\s|{}]+", name) for name in names):
        raise ValueError(
            f"package {package!r:.100}: found Tag {text!r:.300}, legal: names and commas"
        )
    return names


def _records(path: Path) -> Iterator[dict[str, str]]:
    """The records of a file: field -> text, its further lines stripped and joined by newlines."""
    wanted = {"Package", "Maintainer", "Original-Maintainer", "Tag"}
    wanted |= {"Description", "Description-en", "Description-md5"}
    record, name = {}, ""
    try:
        with _text(path) as file:
            for number, line in enumerate(file, start=1):
                field, colon, value = line.partition(":")
                if not line.endswith("\n"):
                    raise ValueError(f"line {number}: found no end, legal: whole lines")
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
                    raise ValueError(f"line {number}: found {line[:40]!r}, legal: FIELD: TEXT")
            yield record
    except (ValueError, EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"{path}: {error}") from error


@contextlib.contextmanager
def _text(path: Path) -> Iterator[TextIO]:
    """Opens a list, whatever it is compressed with."""
    if path.suffix not in (".lz4", ".zst"):
        with _OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8", newline="\n") as file:
            yield file
        return
    path.open("rb").close()  # for the natural error
    command = [_APT_HELPER, "cat-file", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        with io.TextIOWrapper(process.stdout, encoding="utf-8", newline="\n") as file:
            yield file
        problem = process.stderr.read().decode(errors="replace").strip()
    if process.returncode:
        raise ValueError(f"{_APT_HELPER}: {' '.join(problem.split())}")


@contextlib.contextmanager
def _lists(suite: str | None, files: list[Path] | None) -> Iterator[list[Path]]:
    """The files to read, sorted; those that were downloaded are there within the block."""
    if files:
        yield sorted(files)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = LISTS if suite is None else _fetched(suite, Path(temporary))
        pattern = re.compile(r".*_(Packages|Translation-en)(\.[a-z0-9]+)?")
        found = sorted(path for path in folder.glob("*") if pattern.fullmatch(path.name))
        for kind in ("Packages", "Translation-en"):
            if not any(f"_{kind}" in path.name for path in found):
                raise ValueError(
                    f"{folder}: found no {kind} file, legal: at least one (or --fetch)"
                )
        yield found


def _fetched(suite: str, folder: Path) -> Path:
    """The folder into which apt has downloaded the lists of a Debian suite."""
    if not re.fullmatch(r"[a-z][a-z0-9-]*", suite):
        raise ValueError(f"--fetch: found {suite!r}, legal: a Debian suite such as bookworm")
    if not _KEYRING.exists():
        raise ValueError(f"--fetch: found no {_KEYRING}, legal: with it (debian-archive-keyring)")
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
        raise OSError(f"--fetch={suite}: apt-get update failed: {problem[:300]}")
    return lists


if __name__ == "__main__":
    sys.exit(main(sys.argv))
