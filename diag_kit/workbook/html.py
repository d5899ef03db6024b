"""HTML of the views, from templates with escaping always on: a log is never trusted."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..report.html import prose
from ..report.page import FRAMEWORKS
from ..report.words import TRUTHS, clean, lines_around, value_text
from ..units import format_bytes
from .markdown import code, markdown

_environment = Environment(
    loader=PackageLoader("diag_kit.workbook"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)
_environment.filters.update(clean=clean, prose=prose, markdown=markdown, highlighted=code, values=value_text)
_environment.globals.update(size=format_bytes, lines_around=lines_around, framework_names=FRAMEWORKS, truths=TRUTHS)


def render(template: str, **values: Any) -> str:
    """The template's text with ``values`` in it, each escaped."""
    return _environment.get_template(template).render(**values)
