"""The environment in which all templates of the package are rendered."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from raytwin.reports import palette


def page(template: str, filters: Mapping[str, Callable[..., Any]], **context: Any) -> str:
    """Return a whole page: its template gets the script of all pages, and the script's digest."""
    made = environment()
    made.filters |= filters
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    assert made.loader is not None
    script, *_ = made.loader.get_source(made, "report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return made.get_template(template).render(
        script=script, script_digest=digest, palette=palette, **context
    )


def environment() -> Environment:
    """Return an environment that escapes all text, and refuses a name that is not defined."""
    return Environment(
        loader=PackageLoader("raytwin.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
