"""Findings as a document: HTML that opens anywhere, Markdown, JSON, and a dozen lines for a terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DiagKitError

if TYPE_CHECKING:
    from ..checklist import Checklist
    from ..findings import Diagnosis

SUFFIXES = (".html", ".md", ".json")


def write(
    path: str | Path,
    diagnosis: Diagnosis,
    checklist: Checklist | None = None,
    what_if: Mapping[str, Any] | None = None,
    *,
    redact: bool = True,
    plots: Sequence[Mapping[str, Any]] | None = None,
    versions: bool = True,
    hosts: Iterable[str] = (),
) -> Path:
    """Write a report; the suffix decides the form. The file is replaced whole or not at all.

    Args:
        path: ``.html`` (one self-contained file), ``.md`` or ``.json`` (the diagnosis document and the rest beside it).
        diagnosis: what to report.
        checklist: of the same diagnosis, with what people marked.
        what_if: what was explored, as settings documents of ``diag-kit estimate``: ``{"logged": the run as it was,
            "explored": [{"settings": ...}, ...], "settings": as last set}``, each where there is one. The memory model
            says what each would need.
        redact: put stable aliases in place of names, addresses and secrets.
        plots: ``{"title", "spec": {"data", "layout"}, "text"}`` each; drawn in HTML where the workbook's bundle of
            plotly.js is installed, told by their text elsewhere.
        versions: say which versions made the report.
        hosts: names known to be machines, such as the nodes of the job.

    Returns:
        The absolute path written.

    Raises:
        DiagKitError: another suffix, settings that the memory model refuses, or the file can't be written.
    """
    target = Path(path).expanduser().absolute()
    if target.suffix.lower() not in SUFFIXES:
        raise DiagKitError(f"can't write a report as {target.name!r}; end its name in {', '.join(SUFFIXES)}")
    text = render(target.suffix.lower(), diagnosis, checklist, what_if, redact=redact, plots=plots, versions=versions,
                  hosts=hosts)  # fmt: skip
    _replace(target, text)
    return target


def render(
    suffix: str,
    diagnosis: Diagnosis,
    checklist: Checklist | None = None,
    what_if: Mapping[str, Any] | None = None,
    *,
    redact: bool = True,
    plots: Sequence[Mapping[str, Any]] | None = None,
    versions: bool = True,
    hosts: Iterable[str] = (),
) -> str:
    """The report's text, as `write` puts it into a file."""
    from ..redact import Redactor
    from . import page as pages
    from .words import clean

    page = pages.build(diagnosis, checklist, what_if, versions=versions)
    drawings = [
        {"title": clean(plot["title"]), "text": clean(plot["text"]), "spec": plot["spec"]} for plot in plots or ()
    ]
    document: dict[str, Any] = {}
    if suffix == ".json":
        document = {"schema": "diag_kit.report/1", "diagnosis": diagnosis.to_json(), "what_if": what_if,
                    "checklist": checklist.to_json() if checklist else None,
                    "versions": pages.made_with() if versions else {}}  # fmt: skip
    told = {
        "done": False,
        "text": "Nothing was redacted: names and addresses were asked for.",
        "counts": {},
    }
    if redact:
        failed_on = [diagnosis.failure.host] if diagnosis.failure and diagnosis.failure.host else []
        failed_on += sorted({moment.host for moment in diagnosis.timeline if moment.host})
        failed_on += sorted({one.host for one in (diagnosis.repeats.runs if diagnosis.repeats else ()) if one.host})
        redactor = Redactor(hosts=[*hosts, *failed_on])
        everything = (page, drawings, document)
        redactor.learn(everything)
        page, drawings, document = redactor.walk(everything)
        told = {"done": True, "text": redactor.summary(), "counts": redactor.counts()}
    if suffix == ".json":
        return json.dumps(_scalar(document | {"redaction": told}), ensure_ascii=False, indent=1) + "\n"
    page["redaction"] = told["text"]
    if suffix == ".md":
        from .markdown import render_markdown

        return render_markdown(page, drawings)
    from .html import render_html

    return render_html(page, drawings)


def _scalar(value: Any) -> Any:
    """The document with texts that can be written as UTF-8: what was no text becomes a question mark."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_scalar(key): _scalar(inner) for key, inner in value.items()}
    return [_scalar(inner) for inner in value] if isinstance(value, list | tuple) else value


def _replace(target: Path, text: str) -> None:
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(target)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        reason = error.strerror or error
        raise DiagKitError(f"can't write the report to {target}: {reason}; choose another place") from error
