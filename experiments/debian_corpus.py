"""Writes a real tag-prediction corpus from apt's package lists, in Stack Overflow's file format.

usage: ccfl debian_corpus --out_dir=FOLDER [--fetch=bookworm | FILE ...]

An example is a package that has debtags: its short description is the title, the long one the body,
its debtags (the field `Tag`) are the tags. A client is a maintainer (of Ubuntu's changed packages
the original one). A package that is listed more than once counts once: its first record with tags.
Debian's security updates have none, so that a stable suite gives the same corpus from one point
release to the next. Packages are sorted by name, and clients numbered from 0 in that order; no name
or address is written.

Written to the folder, for `ccfl_jax.data.load_stackoverflow`:

* corpus.sqlite.xz: `examples(split_name, client_id, serialized_example_proto)` with an index on the
  first two, and `client_metadata(client_id, split_name, num_examples)`. A proto is a
  tf.train.Example with the texts creation_date, tags (joined by "|"), title, tokens and type, and
  the number score. As in the release, clients whose number is a multiple of 10 are the split
  `heldout`. Lists have no dates to cut at: of the other clients every fifth package is in `test`,
  the rest in `train`, and date, score and type are the same everywhere.
* word_count: a word a line with how many clients use it in a body of `train`, falling.
* tag_count: JSON, tag -> how many clients use it in `train`.

Texts are processed like the release's: lower case, ASCII only, links replaced by <URL>, punctuation
apart from words, except apostrophes and hyphens.

The lists are files Packages and Translation-en (apt keeps the long descriptions in the latter),
plain or compressed as .gz, .xz or, with apt's own helper, .lz4 or .zst:

* --fetch=SUITE: apt downloads those of this Debian suite's `main` for amd64 into a temporary
  folder, whatever the machine's own release; Ubuntu first needs the package debian-archive-keyring;
* FILE ...: these files;
* by default the machine's own in /var/lib/apt/lists. Containers often keep no Translation-en, and
  Ubuntu's own lists may have no debtags; both are refused.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from .config import flag as flags
from .config.command import DONE, command, help_of
from .config.flag import PATH, flag


@dataclass(frozen=True)
class Options:
    """The flags of the command."""

    out_dir: str | None = flag(PATH, None, "folder for the three files", "Corpus")
    fetch: str | None = flag(PATH, None, "Debian suite to download the lists of", "Corpus")


CORPUS = flags.table(Options)


@command("debian_corpus", lambda: help_of(__doc__, CORPUS))
def main(argv: list[str]) -> int:
    """Runs the command line `argv` and returns the exit code."""
    given = flags.read(argv, CORPUS, words="FILE", least=0)
    options = flags.made(Options, given)
    if options.out_dir is None:
        raise ValueError("--out_dir: expected a folder, found none")
    if options.fetch is not None and given.words:
        raise ValueError(f"--fetch: expected without FILE, found with {given.words[0]!r:.300}")

    from .corpora import apt_lists, debian, stackoverflow_files

    folder = Path(options.out_dir)
    there = [name for name in stackoverflow_files.OUTPUT if (folder / name).exists()]
    if there:
        raise ValueError(
            f"--out_dir: expected a folder without earlier output, found {', '.join(there)}"
        )
    with apt_lists.lists(options.fetch, given.words) as files:
        examples = debian.read_examples(files)
    print(stackoverflow_files.write(folder, examples), f"from {len(files)} lists")
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv))
