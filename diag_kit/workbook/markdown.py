"""Text of the encyclopedia as HTML: a fixed subset of Markdown, and code in colour.

Everything is escaped before anything is marked up, and nothing else becomes markup: no HTML passes, and a link leads to
https alone. The subset: paragraphs, bullet and numbered lists, ``###`` headings, tables, fenced code, and within a line
``code``, **strong**, *emphasis* and links.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import lru_cache

from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

_BULLET = re.compile(r"^[*-] +|^\d+[.)] +")
_BLOCK = re.compile(r"\n[ \t]*\n")
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ \t]*$", re.M | re.S)
_INLINE = (
    (re.compile(r"\*\*(?=\S)([^*]+)\*\*"), r"<strong>\1</strong>"),
    (re.compile(r"(?<![\w*])\*(?=\S)([^*]+)\*(?![\w*])"), r"<em>\1</em>"),
    (
        re.compile(r"\[([^\]]+)\]\((https://[^\s()]+)\)"),
        r'<a href="\2" target="_blank" rel="noopener noreferrer">\1</a>',
    ),
)
_CODE = re.compile(r"`([^`]+)`")


def markdown(text: str) -> Markup:
    """The subset as HTML."""
    html, at = [], 0
    for fence in _FENCE.finditer(text):
        html += [*_blocks(text[at : fence.start()]), f"<pre>{code(fence[2], fence[1])}</pre>"]
        at = fence.end()
    return Markup("\n".join([*html, *_blocks(text[at:])]))  # noqa: S704 - each part is escaped where it is made


def inline(text: str) -> Markup:
    """One line: code first, in which nothing else counts, then strong, emphasis, links."""
    parts = _CODE.split(str(escape(text)))
    for n, part in enumerate(parts):
        if n % 2:
            parts[n] = f"<code>{part}</code>"
        else:
            for pattern, into in _INLINE:
                parts[n] = pattern.sub(into, parts[n])
    return Markup("".join(parts))  # noqa: S704 - escaped above


def _blocks(text: str) -> Iterator[str]:
    for block in filter(None, (part.strip("\n") for part in _BLOCK.split(text))):
        lines = block.splitlines()
        if lines[0].startswith("### "):
            yield f"<h4>{inline(lines[0][4:])}</h4>"
            lines = lines[1:]
        if not lines:
            continue
        if len(lines) > 1 and lines[0].startswith("|") and set(lines[1]) <= set("|-: "):
            yield _table(lines)
        elif _BULLET.match(lines[0]):
            yield _list(lines)
        else:
            yield f"<p>{inline(' '.join(line.strip() for line in lines))}</p>"


def _list(lines: list[str]) -> str:
    items: list[str] = []
    for line in lines:
        if mark := _BULLET.match(line):
            items.append(line[mark.end() :])
        else:
            items[-1] += f" {line.strip()}"
    tag = "ol" if lines[0][0].isdigit() else "ul"
    return f"<{tag}>{''.join(f'<li>{inline(item)}</li>' for item in items)}</{tag}>"


def _table(lines: list[str]) -> str:
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    head = "".join(f"<th>{inline(cell)}</th>" for cell in rows[0])
    body = "".join(f"<tr>{''.join(f'<td>{inline(cell)}</td>' for cell in row)}</tr>" for row in rows[2:])
    return f'<div class="dk-scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


@lru_cache(1024)
def code(text: str, language: str = "") -> Markup:
    """Code in colour, escaped; without a language it is what it parses as."""
    lexer = get_lexer_by_name(language if language in ("python", "json", "bash", "yaml") else _language(text))
    formatter = HtmlFormatter(nowrap=True, classprefix="dk-c-")
    return Markup(highlight(text.rstrip(), lexer, formatter).rstrip("\n"))  # noqa: S704 - the formatter escapes


def _language(text: str) -> str:
    for language, parses in (("json", json.loads), ("python", ast.parse)):
        try:
            parses(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return language
    return "bash"
