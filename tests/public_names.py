"""The public modules, and the public names of one."""

import inspect

import ccfl_jax as ccfl
import ccfl_jax.models

MODULES = [
    *(one for one in (getattr(ccfl, name) for name in ccfl.__all__) if inspect.ismodule(one)),
    ccfl_jax.models,
    ccfl_jax.data,
]


def public(module):
    """Name -> object: of its `__all__`, else the functions and classes that it defines."""
    if names := getattr(module, "__all__", None):
        found = {name: getattr(module, name) for name in names}
        return {name: one for name, one in found.items() if not inspect.ismodule(one)}
    return {
        name: one
        for name, one in vars(module).items()
        if not name.startswith("_") and getattr(one, "__module__", None) == module.__name__
    }
