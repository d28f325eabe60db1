"""Functions of a user's own modules, by name."""

import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ccfl_jax.checks import one_line


@functools.lru_cache(maxsize=2)  # the task and the data of a run come from one call
def called(text: str) -> Any:
    """What a function returns, called without arguments.

    Args:
        text: `MODULE:FUNCTION`, of a module that can be imported, from the current folder too; or
            `FILE.py:FUNCTION`, which finds the modules beside it.

    Raises:
        ValueError: there is no such function, or it raises an error; in one line.
    """
    function = _function(text)
    try:
        return function()
    except Exception as error:
        raise ValueError(
            f"{text}: expected a function that can be called without arguments, found "
            f"{type(error).__name__}: {one_line(str(error))}"
        ) from error


def source_digest(text: str) -> str:
    """Hexadecimal digits for the source of the function's module."""
    function = _function(text)
    source = inspect.getsource(inspect.getmodule(function) or function)
    return hashlib.blake2b(source.encode(), digest_size=16).hexdigest()


def _function(text: str) -> Callable[[], Any]:
    place, _, name = text.rpartition(":")
    try:
        found = getattr(_module(place), name)
    except Exception as error:
        raise ValueError(
            f"{text}: expected MODULE:FUNCTION or FILE.py:FUNCTION, found "
            f"{type(error).__name__}: {one_line(str(error))}"
        ) from error
    if not callable(found):
        raise ValueError(f"{text}: expected a function, found {type(found).__name__}")
    return found


@functools.cache
def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        sys.path.append("")  # an installed command does not look into the current folder
        try:
            return importlib.import_module(place)
        finally:
            sys.path.remove("")
    path = Path(place).expanduser().resolve()
    sys.path.append(str(path.parent))  # a script finds the modules beside it
    specification = importlib.util.spec_from_file_location(path.stem, path)
    if specification is None or specification.loader is None:
        raise ImportError(f"{place}: expected a Python file, found another")
    module = importlib.util.module_from_spec(specification)
    sys.modules[path.stem] = module  # as its classes look for it there
    specification.loader.exec_module(module)
    return module
