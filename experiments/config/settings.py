"""The kinds of a run's settings: seeds, what decides a result, a method's and its problem's."""

from .run_flags import RUN

SEEDS = ("seed", "data_seed", "init_seed", "schedule_seed")
# The flags that decide a result, which a sweep may vary: a method's, and else, but for the seeds,
# those of the problem that it is to solve.
DECIDING = [name for name, one in RUN.items() if one.may_change != "always"]
_METHODS = ("Clients", "Method", "Server")
PROBLEM = [n for n in DECIDING if RUN[n].section not in _METHODS and n not in SEEDS]


def free(*, a_run: bool) -> set[str]:
    """The settings that may differ at resuming a run, or a sweep, whose rows must not change."""
    kinds = ("always", "in a run") if a_run else ("always",)
    return {name for name, one in RUN.items() if one.may_change in kinds}
