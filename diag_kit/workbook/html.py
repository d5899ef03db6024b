"""HTML of the views, from templates with escaping always on: a log is never trusted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..evidence.facts import Source
from ..report.html import prose
from ..report.words import clean
from ..units import format_bytes


class Line(NamedTuple):
    """A line of a source's context; ``here`` is the line that the fact stands on."""

    text: str
    here: bool


def lines_around(source: Source) -> Iterator[Line]:
    """The lines to show of a source, in file order, its own marked."""
    lines = source.context or (source.text,)
    for line in lines:
        yield Line(line, line == source.text)


_environment = Environment(
    loader=PackageLoader("diag_kit.workbook"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)
_environment.filters.update(clean=clean, prose=prose)
_environment.globals.update(size=format_bytes, lines_around=lines_around)


def render(template: str, **values: Any) -> str:
    """The template's text with ``values`` in it, each escaped."""
    return _environment.get_template(template).render(**values)
