"""What methods whose clients have models of their own do besides: task, scores and bytes."""

from typing import Any

import jax

import ccfl_jax as ccfl
from ccfl_jax import systems

from ..config.methods import named
from ..config.run_flags import Config


def task_of(config: Config, task: ccfl.Task) -> ccfl.Task:
    """The task that is trained: of Ditto two models, of all other methods `task`."""
    is_ditto = config.rule is not None and named("rule", config.rule)[0] == "ditto"
    return systems.ditto(task)[0] if is_ditto else task


def shared(rule: ccfl.Rule, params: Any) -> list[Any]:
    """The leaves of a model, or their shapes, that a personal rule's clients send and receive."""
    own = {id(leaf) for leaf in jax.tree.leaves(rule.memory(params))}
    return [leaf for leaf in jax.tree.leaves(params) if id(leaf) not in own]
