"""The site's pages include what other files say, and show all there is to show."""

import re
from pathlib import Path
from pkgutil import resolve_name

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_every_finished_figure_is_in_the_gallery():
    figures = {
        path.relative_to(ROOT).as_posix() for path in ROOT.glob("experiments/results/*/*.png")
    }
    shown = set(re.findall(r"\]\(\.\./(\S+\.png)\)", (DOCS / "gallery.md").read_text()))
    assert figures and shown == figures


def test_what_a_page_includes_is_there():
    """Sphinx says the same, later; here whoever renames a heading hears it."""
    seen = 0
    for page in DOCS.rglob("*.md"):
        text = page.read_text()
        for name, options in re.findall(r"^```\{include\} (\S+)\n(.*?)```", text, re.S | re.M):
            text = (page.parent / name).read_text()
            start = re.search(r':start-after: "(.*)"', options)
            if start:
                assert start[1] in text, f"{page.name} includes {name} after {start[1]!r}"
                text = text.split(start[1], 1)[1]
            end = re.search(r':end-before: "(.*)"', options)
            assert not end or end[1] in text, f"{page.name} includes {name} up to {end[1]!r}"
            seen += 1
    assert seen >= 11


def test_what_a_page_names_is_there():
    pages = [page.read_text() for page in DOCS.rglob("*.md")]
    names = {name for text in pages for name in re.findall(r"\{py:obj\}`~?([\w.]+)`", text)}
    assert len(names) > 5
    for name in names:
        assert resolve_name(name).__doc__, name
