"""The flags of a figure of curves."""

from dataclasses import dataclass

from . import flag as flags
from .flag import PATH, accept_changed, flag, one_of

# Horizontal axes: label, and the columns that add up to it.
AXES = {
    "round": ("round", ("round",)),
    "client_updates": ("client updates", ("client_updates",)),
    "samples": ("samples processed", ("samples",)),
    "bytes": ("bytes sent and received", ("bytes_sent", "bytes_received")),
    "virtual_time": ("virtual time (s)", ("virtual_time",)),
    "seconds": ("training time (s)", ("seconds",)),
}


@dataclass(frozen=True)
class Options:
    """The flags of the command."""

    x: str = flag(one_of(*AXES), "round", "the horizontal axis", "Figure")
    out: str = flag(PATH, "comparison.png", "file to write; its ending is the format", "Figure")
    accept_changed: str = accept_changed("Figure")


PLOT = flags.table(Options)
