"""The flags of a figure of curves."""

import re
from dataclasses import dataclass
from pathlib import Path

from absl import flags as absl_flags

from . import flag as flags
from .flag import NAMES, Domain, accept_changed, flag, one_of

# Horizontal axes: label, and the columns that add up to it.
AXES = {
    "round": ("round", ("round",)),
    "client_updates": ("client updates", ("client_updates",)),
    "samples": ("samples processed", ("samples",)),
    "bytes": ("bytes sent and received", ("bytes_sent", "bytes_received")),
    "virtual_time": ("virtual time (s)", ("virtual_time",)),
    "seconds": ("training time (s)", ("seconds",)),
}
CLIENTS = "clients"  # the axis of the figure of a run's sorted clients
_ENDINGS = (".png", ".pdf", ".svg")


def _files(text: str) -> list[str]:
    """The files that a text names; a comma may be in a name too."""
    return re.split(rf"(?<={'|'.join(map(re.escape, _ENDINGS))}),", text, flags=re.IGNORECASE)


_PICTURES = Domain(
    absl_flags.DEFINE_string,
    f"files that end in {', '.join(_ENDINGS)}, with a comma between two",
    lambda v: all(Path(name).suffix.lower() in _ENDINGS for name in _files(v)),
)


@dataclass(frozen=True)
class Options:
    """The flags of the command."""

    out: str | None = flag(_PICTURES, None, "where the figure is written; needed", "Figure")
    x: str = flag(
        one_of(*AXES, CLIENTS),
        "round",
        "the horizontal axis; clients: of runs with --client_test, from the worst to the best",
        "Figure",
    )
    y: str = flag(
        NAMES,
        "",
        "columns of the rows, as test_accuracy,test_loss, a panel each; by default the training "
        "and the test score, and the test loss; of clients.csv, that of the clients' last models",
        "Figure",
    )
    labels: str = flag(
        NAMES,
        "",
        "a name for each line, in their order; by default the settings that differ between lines",
        "Figure",
    )
    accept_changed: str = accept_changed("Figure")

    @property
    def pictures(self) -> list[Path]:
        """The files of `out`."""
        return [Path(name).expanduser() for name in _files(self.out or "") if name]


PLOT = flags.table(Options)
