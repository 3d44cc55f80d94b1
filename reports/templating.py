"""The environment in which all templates of the package are rendered."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined


def environment() -> Environment:
    """Return an environment that escapes all text, and refuses a name that is not defined."""
    return Environment(
        loader=PackageLoader("raytwin.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
