"""Reports as files: whole, honest about what was done to them, inert whatever a log held, and replaced at once."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import jinja2
import mistune
import pytest

from diag_kit import report
from diag_kit.checklist import Checklist
from diag_kit.errors import DiagKitError
from diag_kit.evidence.facts import Source
from diag_kit.report import html as html_module
from diag_kit.report.fixes import framework

from .conftest import CONFIG, HOSTILE, PLOTS, WHAT_IF

SUFFIXES = ["html", "md", "json"]


class Page(HTMLParser):
    """What a browser would build: tags with attributes, and the text outside of script and style."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(document)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes what it did not open"

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data


def written(tmp_path: Path, suffix: str, diagnosis, *rest, **more) -> str:
    """A report's text."""
    return report.write(tmp_path / f"r.{suffix}", diagnosis, *rest, **more).read_text(encoding="utf-8")


def flat(tokens):
    """Tokens of a Markdown tree with all that they hold."""
    for token in tokens:
        yield token
        yield from flat(token.get("children", ()))


def without_bundle(document: str) -> str:
    """A report without plotly.js, which has words of its own."""
    return re.sub(r'(<script nonce="[^"]*">).{100000,}?(</script>)', r"\1\2", document, flags=re.DOTALL)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_form_says_the_same(tmp_path, suffix, diagnosis, checklist):
    """Summary, place, evidence, missing, fixes, what-if, checklist with names and notes, coverage, versions."""
    text = written(tmp_path, suffix, diagnosis, checklist, WHAT_IF, plots=PLOTS)
    text = Page(text).text if suffix == "html" else text
    for words in (
        "Rank 3 ran out of GPU memory", "rank3.log", "10233", "ruled-out", "The shape of the batch",
        "Use fused attention", "scaled_dot_product_attention", "flash", "Ada Lovelace", "seed 7, twice", "Grace Hopper",
        "frame is from the warm-up", "profile.bin: not text, skipped", "diag-kit", "1 host name",
    ):  # fmt: skip
        assert words in text, words


@pytest.mark.parametrize("suffix", ["html", "md"])
def test_readers_see_the_arithmetic_and_the_plots_in_words(tmp_path, suffix, diagnosis):
    """The message's sum, each fix's saving and each plot's text are there without a drawing."""
    text = written(tmp_path, suffix, diagnosis, plots=PLOTS)
    text = Page(text).text if suffix == "html" else text
    for words in ("2.46 GiB short", "19.30 GiB", "not predicted", PLOTS[0]["text"], "allocated by PyTorch"):
        assert words in text, words


@pytest.mark.parametrize("suffix", ["html", "md"])
def test_each_fix_is_printed_once(tmp_path, suffix, diagnosis):
    """A second finding with the same fix refers to the first."""
    first, second, *rest = diagnosis.findings
    shared = replace(diagnosis, findings=(first, replace(second, fixes=first.fixes[:1]), *rest))
    text = written(tmp_path, suffix, shared)
    assert text.count("is_causal=True") == 1
    assert "Use fused attention (see attention quadratic)" in text


def test_the_runs_own_framework_comes_first(tmp_path, diagnosis):
    """Its lines stand alone in Markdown; HTML folds the others behind it."""
    banner = Source("train.log", 9, "[INFO|trainer.py:2417] >> Instantaneous batch size per device = 4")
    trainer = replace(diagnosis, settings={"micro_batch": (4, banner)})
    text = written(tmp_path, "md", trainer)
    assert "Use fused attention, Hugging Face Trainer:" in text
    assert "scaled_dot_product_attention" not in text
    html = Page(written(tmp_path, "html", trainer)).text
    assert html.index("attn_implementation=") < html.index("other frameworks") < html.index("scaled_dot_product")
    zero = replace(diagnosis, settings={"strategy": ("zero3", CONFIG)})
    assert [framework(one) for one in (diagnosis, trainer, zero)] == ["pytorch", "trainer", "deepspeed"]


def test_json_holds_the_documents_of_the_contract(tmp_path, diagnosis, checklist):
    """Unredacted, the JSON report holds the very documents that the commands print."""
    document = json.loads(written(tmp_path, "json", diagnosis, checklist, WHAT_IF, redact=False))
    assert document["diagnosis"] == json.loads(json.dumps(diagnosis.to_json()))
    assert document["checklist"] == checklist.to_json()
    assert document["what_if"] == WHAT_IF
    assert document["versions"]["diag-kit"]
    assert document["redaction"] == {"done": False, "text": "Nothing was redacted: names and addresses were asked for.",
                                     "counts": {}}  # fmt: skip


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_names_go_and_ranks_stay(tmp_path, suffix, diagnosis, checklist):
    """Accounts, hosts and addresses are replaced in every part; the failed host has an alias, a path its file."""
    text = without_bundle(written(tmp_path, suffix, diagnosis, checklist, WHAT_IF, plots=PLOTS))
    for name in ("alice", "gpu-12", "cluster.internal", "10.0.3.17"):
        assert name not in text
    assert "host-1" in text
    assert "~user-1/runs/llama-8b/rank3.log" in text


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_redaction_can_be_declined_and_says_so(tmp_path, suffix, diagnosis):
    """Asked for with names, the report has them, and says that nothing was redacted."""
    text = written(tmp_path, suffix, diagnosis, redact=False)
    assert "/home/alice" in text
    assert "Nothing was redacted" in text


def test_known_hosts_are_redacted_in_every_text(tmp_path, diagnosis):
    """Names that the caller knows as machines are replaced although no line says that they are."""
    told = replace(diagnosis, summary="It died on titan.")
    assert "It died on host-" in written(tmp_path, "md", told, hosts=["titan"])


def test_plots_are_redacted(tmp_path, diagnosis):
    """A path in a plot's labels is replaced too."""
    plot = {"title": "t", "text": "x", "spec": {"data": [{"name": "/home/alice/run"}], "layout": {}}}
    text = without_bundle(written(tmp_path, "html", diagnosis, plots=[plot]))
    assert "alice" not in text
    assert "~user-1/run" in text


def test_html_stays_inert(tmp_path, hostile_diagnosis):
    """No tag, attribute or template of a log acts: it is all text, and only the report's own scripts may run."""
    checklist = Checklist.from_diagnosis(hostile_diagnosis)
    checklist.mark("universal/reproduce", "confirmed", HOSTILE, HOSTILE)
    plots = [{"title": HOSTILE, "text": HOSTILE, "spec": {"data": [{"name": HOSTILE}], "layout": {"title": HOSTILE}}}]
    text = written(tmp_path, "html", hostile_diagnosis, checklist, WHAT_IF, plots=plots)
    page = Page(text)
    policy = next(attrs["content"] for tag, attrs in page.tags if tag == "meta" and "http-equiv" in attrs)
    [nonce] = re.findall(r"'nonce-([^']+)'", policy)
    assert "default-src 'none'" in policy
    scripts = [attrs for tag, attrs in page.tags if tag == "script"]
    assert scripts
    assert all(attrs.get("nonce") == nonce for attrs in scripts)
    assert not [
        tag for tag, attrs in page.tags if tag in ("img", "iframe", "link") or {"src", "onclick", "onerror"} & {*attrs}
    ]
    assert all(attrs["href"].startswith("#") for tag, attrs in page.tags if tag == "a")
    assert page.open == []
    assert "<script>alert(1)</script>" in page.text
    assert "{{7*7}}" in page.text
    assert len(page.text) < 60_000


def test_markdown_stays_inert(tmp_path, hostile_diagnosis):
    """Read by a parser that allows HTML, a hostile log makes no HTML, image, link, heading or row of a table."""
    text = written(tmp_path, "md", hostile_diagnosis, Checklist.from_diagnosis(hostile_diagnosis), WHAT_IF)
    tokens = list(flat(mistune.create_markdown(renderer="ast", escape=False, plugins=["table"])(text)))
    assert not {"block_html", "inline_html", "image", "link"} & {token["type"] for token in tokens}
    headings = [
        "".join(inner.get("raw", "") for inner in flat(t["children"])) for t in tokens if t["type"] == "heading"
    ]
    assert not [heading for heading in headings if heading.strip() == "owned"]
    rows = [len(token["children"]) for token in tokens if token["type"] in ("table_head", "table_row")]
    assert set(rows) == {2, 3, 4, 5}
    assert len(text) < 60_000


def test_json_survives_hostile_text(tmp_path, hostile_diagnosis):
    """Broken bytes, NULs and 100 kB lines end in JSON that any reader takes."""
    document = json.loads(written(tmp_path, "json", hostile_diagnosis))
    assert "\x00" not in document["diagnosis"]["summary"]


def test_html_needs_nothing_from_outside(tmp_path, diagnosis, checklist):
    """No address is loaded: no src, no import, no url() in the styles, and plots carry their own library."""
    text = written(tmp_path, "html", diagnosis, checklist, WHAT_IF, plots=PLOTS)
    page = Page(text)
    assert not [attrs for _, attrs in page.tags if "src" in attrs or attrs.get("href", "#")[:1] != "#"]
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style


def test_plot_data_cannot_end_its_script(tmp_path, diagnosis):
    """Data with a closing tag in it stays inside and comes back equal."""
    text = written(tmp_path, "html", diagnosis, plots=PLOTS)
    found = re.search(r'type="application/json" id="specs">(.*?)</script>', text, re.DOTALL)
    assert json.loads(found[1]) == [PLOTS[0]["spec"]]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_undetermined_run_has_a_report_too(tmp_path, suffix, diagnosis):
    """No failure, no finding, no setting: the report holds what there is."""
    bare = replace(diagnosis, family="undetermined", failure=None, initiating_rank=None, initiating_reason="",
                   collateral=(), findings=(), settings={}, restart=None, growth="", figures={}, points=())  # fmt: skip
    assert "shape of the batch" in written(tmp_path, suffix, bare, Checklist.from_diagnosis(bare))


def test_the_template_knows_every_name(diagnosis):
    """A name that the page doesn't have is an error in the template, not an empty place in the report."""
    with pytest.raises(jinja2.UndefinedError):
        html_module.render_html({"title": "x"})


@pytest.mark.parametrize("name", ["report.pdf", "report", "report.html.gz"])
def test_another_suffix_is_one_clear_line(tmp_path, diagnosis, name):
    """The three forms are named."""
    with pytest.raises(DiagKitError, match=r"\.html, \.md, \.json$") as caught:
        report.write(tmp_path / name, diagnosis)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["absent/r.html", "taken/r.html", "folder.html"])
def test_an_unwritable_place_is_one_clear_line(tmp_path, diagnosis, place):
    """A folder that isn't there, a file in its place, a folder in the report's: one line, and nothing left behind."""
    (tmp_path / "taken").write_text("")
    (tmp_path / "folder.html").mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(DiagKitError, match=r"can't write the report to .*choose another place") as caught:
        report.write(tmp_path / place, diagnosis)
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before


def test_a_failed_write_leaves_the_old_report(tmp_path, diagnosis, monkeypatch):
    """The file is replaced whole or not at all."""
    target = report.write(tmp_path / "r.md", diagnosis)
    before = target.read_text(encoding="utf-8")

    def full(self, *args, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(DiagKitError, match="No space left"):
        report.write(target, replace(diagnosis, summary="newer"))
    assert target.read_text(encoding="utf-8") == before
    assert list(tmp_path.iterdir()) == [target]


def test_versions_can_be_left_out(tmp_path, diagnosis):
    """The report names what made it, unless asked not to."""
    assert "Made with diag-kit" in written(tmp_path, "md", diagnosis)
    assert "Made with" not in written(tmp_path, "md", diagnosis, versions=False)
