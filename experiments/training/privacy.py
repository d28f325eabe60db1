"""What a run gives away of its clients, from its `Config`: a column of its rows."""

import ccfl_jax as ccfl
from ccfl_jax import systems

from ..config.methods import named
from ..config.run_flags import Config
from ..config.settings import free

_TREE = "dp_ftrl"  # whose noise is a tree of all rounds


def check(config: Config) -> None:
    """Raises ImportError where epsilon is wanted and its accountant is not installed."""
    if config.delta is not None:
        systems.epsilon_of_sampling(1.0, 1, 1.0, config.delta)


def may_differ(config: Config) -> set[str]:
    """The settings that may differ at resuming a run: a tree cannot grow."""
    grows = config.privacy is None or named("privacy", config.privacy)[0] != _TREE
    return free(a_run=True) - (set() if grows else {"rounds"})


def columns(config: Config, done: ccfl.Schedule) -> dict[str, float]:
    """`epsilon` of the rounds done, of the client that they expose most; without a delta none."""
    if config.delta is None or config.privacy is None:
        return {}
    kind, numbers = named("privacy", config.privacy)
    noise = numbers["noise_multiplier"]
    return {"epsilon": systems.epsilon_of_schedule(done, noise, config.delta, kind == _TREE)}
