"""The bundle of plotly.js is whole, licensed and small."""

from __future__ import annotations

from diag_kit.report.bundle import PLOTLY_JS_VERSION, STATIC, plotly_js


def test_header_names_licence_and_version() -> None:
    """The MIT header stays on the file, and the version is the one that the module names."""
    head = plotly_js()[:400]
    assert "Licensed under the MIT license" in head
    assert f"plotly.js (basic - minified) v{PLOTLY_JS_VERSION}" in head


def test_bundle_is_whole_and_partial() -> None:
    """It ends as npm ships it, and is the basic bundle: a page loads 1.2 MB, not 4.8."""
    text = plotly_js()
    assert text.rstrip().endswith("return Plotly;\n}));")
    assert (STATIC / "plotly-basic.min.js").stat().st_size < 1_300_000
