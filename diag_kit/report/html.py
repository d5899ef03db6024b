"""The report as one HTML file that opens offline: no request leaves it, and no text of a log acts in it.

Three things keep log text inert: autoescape, plot data embedded as JSON without ``<``, and a content security policy
that runs only the scripts bearing this file's nonce and loads nothing from anywhere.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from .bundle import plotly_js

_TEMPLATES = Path(__file__).parent / "templates"


def render_html(page: Mapping[str, Any], plots: Sequence[Mapping[str, Any]] = ()) -> str:
    """HTML of a page from `page.build`; ``plots`` are drawn by plotly.js, which the page then carries."""
    bundle = plotly_js() if plots else ""
    specs = json.dumps([plot["spec"] for plot in plots] if bundle else [], default=str)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["prose"] = prose
    return environment.get_template("report.html").render(
        page=page,
        plots=plots,
        css=_text("report.css"),
        script=_text("report.js"),
        bundle=bundle.replace("</script", r"<\/script"),
        specs=specs.replace("<", r"\u003c"),
        nonce=secrets.token_urlsafe(16),
    )


def prose(text: str) -> Markup:
    """Text whose backticks mark code, as the encyclopedia writes it: escaped first, then marked up."""
    return Markup(re.sub(r"`([^`<>]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped just here


def _text(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")
