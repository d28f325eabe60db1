"""How the documentation site is built: `sphinx-build -W docs docs/_build/html`."""

import hashlib
import os
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.domains.python import PyObject
from sphinx.util import logging

import ccfl_jax

ROOT = Path(__file__).parents[1]

project, author = "ccfl_jax", ""
release = version = ccfl_jax.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_design"]
exclude_patterns = ["_build"]
html_theme = "sphinx_book_theme"
html_title = "ccfl_jax"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "show_toc_level": 2,
    "use_download_button": False,
    "navbar_start": [],  # search and title are in the side bar
    "navbar_center": [],
    "navbar_end": [],
    "navbar_persistent": [],
}
html_copy_source = False
html_math_renderer = "mathml"  # which browsers draw without a script, so without a network too

default_role = "py:obj"  # a name in backticks is a link where the reference has it
add_module_names = False
python_maximum_signature_line_length = 72
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # an attribute is a line of its class, no entry of its own
napoleon_attr_annotations = False  # its words say shape and dtype

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3


os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # ccfl
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # tqdm's, in a notebook's kernel
# Programs run for moments: they are compiled without optimisation, and once for all pages.
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(ROOT / "docs/_build/programs")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"


def _digest() -> str:
    """Of the code that notebooks run: where it changes, kept outputs are those of other code."""
    rooms = "ccfl_jax", "experiments"
    files = sorted(path for room in rooms for path in ROOT.glob(f"{room}/**/*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "docs/_build/notebooks" / _digest())
nb_execution_raise_on_error = True
nb_execution_timeout = 600  # of a cell, on a busy machine
nb_execution_in_temp = True  # what a notebook writes is no part of the checkout
nb_execution_show_tb = True
nb_merge_streams = True
nb_render_markdown_format = "myst"  # tables


def _skip(app: Any, kind: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    """A field of a NamedTuple is told with its class."""
    del app, kind, name, skip, options
    return True if type(value).__name__ == "_tuplegetter" else None


def _code(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """In docstrings an indented block after a paragraph is code, and "n." is no item of a list."""
    del app, name, options
    if what == "data" and value.__doc__ == type(value).__doc__:  # that of dict, of int
        lines.clear()
    lines[:] = [re.sub(r"^( +\w+: )(?=\w\.( |$))", r"\1\\", line) for line in lines]
    for k in reversed(range(2, len(lines))):
        above = lines[k - 2]
        is_block = lines[k].startswith("    ") and not lines[k - 1] and above[:1].strip()
        if is_block and not above.startswith("..") and not above.endswith("::"):
            lines[k:k] = ["::", ""]


def _fields(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Words before a colon in "Returns" are no type, as napoleon takes them for."""
    del app, what, name, value, options
    kinds = [line.partition(" ")[0] for line in lines]
    if ":rtype:" in kinds:
        words = lines.pop(kinds.index(":rtype:")).removeprefix(":rtype: ")
        at = kinds.index(":returns:")
        lines[at] = lines[at].replace(":returns:", f":returns: {words}:", 1)


def _signature(
    app: Any, what: str, name: str, value: Any, options: Any, sign: Any, back: Any
) -> Any:
    """Without Flax's own arguments of a module, and the names of functions that have none."""
    del app, what, name, value, options
    sign = sign and re.sub(r"(, )?parent=<flax[^>]*>, name=None", "", sign)
    return sign and re.sub(r"<function [^,]*>", "...", sign), back


def _formula(page: Any, node: Any) -> None:
    tex, is_block = node.astext(), isinstance(node, nodes.math_block)
    if r"\\" in tex:
        tex = rf"\begin{{split}}{tex}\end{{split}}"
    drawn = convert(tex, display="block" if is_block else "inline")
    if "\\" in drawn:
        logging.getLogger(__name__).warning("unknown TeX in %s", tex, location=node)
    page.body.append(f'<div class="math">{drawn}</div>' if is_block else drawn)
    raise nodes.SkipNode


def setup(app: Any) -> None:
    app.add_html_math_renderer("mathml", (_formula, None), (_formula, None))
    next(
        field for field in PyObject.doc_field_types if field.name == "variable"
    ).label = "Attributes"
    app.connect("autodoc-process-docstring", _code, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", _fields, priority=600)  # after it
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-skip-member", _skip)
