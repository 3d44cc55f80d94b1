"""Colours of the report by name, for light and for dark surroundings.

Drawings are made with the light ones. In the page each stands for a variable of the style sheet
(`svg.inline`), so that a figure follows the reader's choice of light or dark as text does.
The hues are blue, vermilion and green after Okabe and Ito, which differ for every kind of colour
vision; curves of one source differ in marker and dash, too.
"""

from __future__ import annotations

LIGHT = {
    "page": "#f5f6f7", "panel": "#ffffff", "ink": "#16191d", "muted": "#59616b", "line": "#e3e7ec",
    "band": "#f3d9b5", "transfer": "#b9c0c8", "task": "#9aa3ad",
    "sim0": "#0062ad", "sim1": "#2f93dd", "sim2": "#5b46b8", "sim3": "#00807a",
    "mea0": "#c8400a", "mea1": "#a86a00", "mea2": "#a92b6b", "mea3": "#7c5a1c",
    "ray0": "#00694c", "ray1": "#3f7d00", "ray2": "#00705f", "ray3": "#4b6b2d",
    "good": "#0f7a45", "bad": "#b3261e", "warn": "#8a5a00",
}  # fmt: skip
DARK = {
    "page": "#0f1114", "panel": "#171a1f", "ink": "#e8eaed", "muted": "#a3abb5", "line": "#2e343c",
    "band": "#57431f", "transfer": "#6b747f", "task": "#7d8792",
    "sim0": "#5aaef0", "sim1": "#9ccfff", "sim2": "#b0a3f5", "sim3": "#4cc4be",
    "mea0": "#ff8a5c", "mea1": "#e0ac45", "mea2": "#e889bb", "mea3": "#c9a56a",
    "ray0": "#4cc39b", "ray1": "#93c951", "ray2": "#72d3c2", "ray3": "#adcf86",
    "good": "#57c98a", "bad": "#ff8a80", "warn": "#e3b04b",
}  # fmt: skip

NAMES = {colour: name for name, colour in LIGHT.items()}


def declared(colours: dict[str, str]) -> str:
    """Return the colours as declarations of variables for a style sheet."""
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


def curves(source: str) -> tuple[str, ...]:
    """Return the colours of the curves of a source: ``sim``, ``mea`` or ``ray``."""
    return tuple(colour for name, colour in LIGHT.items() if name[:-1] == source)
