"""The flags of a page about runs."""

from dataclasses import dataclass
from pathlib import Path

from absl import flags as absl_flags

from . import flag as flags
from .flag import Domain, accept_changed, flag

_PAGE = Domain(
    absl_flags.DEFINE_string,
    "a file that ends in .html",
    lambda v: Path(v).suffix.lower() == ".html",
)


@dataclass(frozen=True)
class Options:
    """The flags of the command."""

    out: str | None = flag(_PAGE, None, "where the page is written; needed", "Page")
    accept_changed: str = accept_changed("Page")


REPORT = flags.table(Options)
