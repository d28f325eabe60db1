"""The event clock: devices, availability and a server's buffer, played through to a schedule."""

from ccfl_jax.clock.event_clock import OnTimeout, Server, Start, clock_schedule
from ccfl_jax.clock.event_log import STALE, TIMED_OUT, UNDERWAY, USED, EventLog
from ccfl_jax.clock.task_sampling import Work

__all__ = [
    "STALE",
    "TIMED_OUT",
    "UNDERWAY",
    "USED",
    "EventLog",
    "OnTimeout",
    "Server",
    "Start",
    "Work",
    "clock_schedule",
]
