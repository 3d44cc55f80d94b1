"""From a matplotlib canvas to SVG within a page.

What matplotlib writes is a document of its own: outlines for letters, colours, identifiers that
several documents share. In a page the letters are text, so that they can be found and copied,
colours are the page's variables, and identifiers begin with the figure's own. An artist whose gid
is ``series:LABEL`` or ``legend:LABEL`` becomes an element with ``data-series`` or ``data-legend``,
by which the page's script finds it.
"""

from __future__ import annotations

import io
import re
from contextlib import AbstractContextManager
from html import escape
from typing import Any

import matplotlib
from matplotlib.figure import Figure as Canvas

from raytwin.reports.palette import NAMES

SERIES, LEGEND = "series:", "legend:"
"""How gids begin."""
DPI = 72
"""So that a pixel of matplotlib's is a unit of the SVG."""

_LEFT_OUT = re.compile(
    r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>"
    r"|<defs>\s*</defs>| xmlns(:\w+)?=\"[^\"]*\"| version=\"[^\"]*\"",
    re.DOTALL,
)
_NUMBERS = re.compile(r' (d|x|y|width|height|transform|style|viewBox|points)="([^"]*)"')
_LONG = re.compile(r"-?\d+\.\d{3,}(?!\d*[a-z])")
_FONT = re.compile(r"font: (?:(\d+) )?([\d.]+)px [^;]*|font-family: [^;]*; ")
_NOTHING = re.compile(r"<g/>|<defs></defs>| transform=\"rotate\(-?0 [^\"]*\"")
_ID = re.compile(r' id="([^"]*)"')
_USED = re.compile(r'(url\(#|href="#)([^")]+)')
_FILL = re.compile(r' fill="(#[0-9a-f]{6})"')
"""Of hatches; a variable can only stand in a style."""
_BOX = re.compile(r"M (\S+) (\S+) L (\S+) \2 L \3 (\S+) L \1 \4 (?:L \1 \2 )?z")
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")


def settings() -> AbstractContextManager[Any]:
    """Return the context in which a canvas is drawn and written: the same each time."""
    return matplotlib.rc_context(
        {"svg.hashsalt": "raytwin", "svg.fonttype": "none", "text.parse_math": False}
    )


def inline(canvas: Canvas, name: str, words: str) -> str:
    """Return a canvas as an ``svg`` element for a page, described by `words`.

    `name` is that of the figure in the page, with which its identifiers begin.
    """
    buffer = io.BytesIO()
    canvas.savefig(buffer, format="svg", metadata={"Date": None}, dpi=DPI)
    text = _LEFT_OUT.sub("", buffer.getvalue().decode())
    used = {found[2] for found in _USED.finditer(text)}
    short = {each: f"{name}-{number}" for number, each in enumerate(sorted(used))}
    text = text.replace("xlink:href", "href")
    text = _FILL.sub(r' style="fill: \1"', text)
    text = _ID.sub(lambda found: _id(found[1], short), text)
    text = _USED.sub(lambda found: found[1] + short[found[2]], text)
    text = _NUMBERS.sub(lambda found: f' {found[1]}="{_attribute(found[2])}"', text)
    text = _NOTHING.sub("", re.sub(r">\s+<", "><", text)).strip()
    view = re.search(r'viewBox="[^"]*"', text)
    assert view is not None, "matplotlib writes a viewBox"
    opening = f'<svg {view[0]} role="img" aria-label="{escape(words)}">'
    return opening + text[text.index(">", text.index("<svg")) + 1 :]


def _id(name: str, short: dict[str, str]) -> str:
    for prefix in (SERIES, LEGEND):
        if name.startswith(prefix):
            return f' data-{prefix[:-1]}="{name.removeprefix(prefix)}"'
    return f' id="{short[name]}"' if name in short else ""


def _size(font: re.Match[str]) -> str:
    weight = "; font-weight: 700" if font[1] else ""
    return f"font-size: {font[2]}px{weight}" if font[2] else ""


def _attribute(value: str) -> str:
    """Return numbers to a hundredth of a unit, colours as variables, and fonts by size alone."""
    value = _LONG.sub(lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), value)
    value = _COLOUR.sub(
        lambda found: f"var(--{NAMES[found[0]]})" if found[0] in NAMES else found[0], value
    )
    value = _FONT.sub(_size, value)
    value = re.sub(r"([:;]) ", r"\1", " ".join(value.split()))
    return _BOX.sub(r"M\1 \2H\3V\4H\1z", value)
