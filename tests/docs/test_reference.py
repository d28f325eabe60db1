"""The site's reference has every public name once, and no other."""

import importlib
import re
from collections import Counter
from pathlib import Path

from public_names import MODULES, public

import ccfl_jax as ccfl

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = DOCS / "reference"
FIGURES = "ccfl_experiments.figures."


def members(module):
    """What `:members:` documents: functions and classes with a docstring."""
    return {name for name, one in public(module).items() if callable(one) and one.__doc__}


def listed(text):
    """The pairs (module, name) of a page that Sphinx's autodoc documents."""
    module, found = None, []
    for kind, argument, options in re.findall(
        r"^\.\. (\w+):: *(\S+)\n((?:   .*\n)*)", text + "\n", re.MULTILINE
    ):
        if kind in ("currentmodule", "automodule"):
            module = argument
        if kind == "automodule" and ":members:" in options:
            left_out = re.search(r":exclude-members:([^:]*)", options)
            dropped = re.split(r"[,\s]+", left_out[1]) if left_out else ()
            names = members(importlib.import_module(module)) - {*dropped}
            found += [(module, name) for name in names]
        elif kind.startswith("auto") and kind != "automodule":
            place, _, name = argument.rpartition(".")
            found.append((place or module, name))
    return found


def entries():
    pages = sorted(REFERENCE.glob("*.rst"))
    return [entry for page in pages for entry in listed(page.read_text())]


def identity(module, name):
    """What is documented: an object, whatever it is called; of a number or text its name."""
    value = getattr(importlib.import_module(module), name)
    return id(value) if callable(value) else name


def test_every_public_name_is_in_the_reference():
    found = {identity(*entry) for entry in entries()}
    wanted = [(one.__name__, name) for one in (ccfl, *MODULES) for name in public(one)]
    assert len(wanted) > 200
    assert not [entry for entry in wanted if identity(*entry) not in found]


def test_the_reference_has_nothing_twice_and_nothing_private():
    found = entries()
    counts = Counter(identity(*entry) for entry in found)
    assert not [entry for entry in found if counts[identity(*entry)] > 1]
    known = {identity(one.__name__, name) for one in (ccfl, *MODULES) for name in public(one)}
    library = [entry for entry in found if not entry[0].startswith(FIGURES)]
    assert not [entry for entry in library if identity(*entry) not in known]


def test_the_reference_has_the_figures_that_pages_draw():
    pages = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    drawn = set(re.findall(r"\b(curves|schedule_figure)\.(\w+)\(", pages))
    listed = {entry for entry in entries() if entry[0].startswith(FIGURES)}
    assert drawn and listed == {(FIGURES + module, name) for module, name in drawn}


def test_what_a_page_lists_is_read():
    page = """.. currentmodule:: ccfl_jax

.. autofunction:: train
.. automodule:: ccfl_jax.runs.callbacks
   :members:
   :exclude-members: ToTarget,
      EarlyStopping
"""
    assert listed(page) == [("ccfl_jax", "train"), ("ccfl_jax.runs.callbacks", "TensorBoard")]
    assert listed(".. automodule:: ccfl_jax.theory\n") == []
