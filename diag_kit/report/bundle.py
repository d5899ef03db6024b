"""The one copy of plotly.js: read from the package, never from a network.

``static/plotly-basic.min.js`` is the npm package ``plotly.js-basic-dist-min`` (scatter, bar, pie), unchanged, with its
MIT licence header. It is a quarter of the full bundle, and needs no plotly wheel. To renew it: ``npm pack
plotly.js-basic-dist-min@VERSION``, copy the file, and set ``PLOTLY_JS_VERSION``.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

STATIC = Path(__file__).parent / "static"
PLOTLY_JS_VERSION = "4.1.1"


@cache
def plotly_js() -> str:
    """The bundle's text (1.2 MB): a UMD script that sets ``window.Plotly`` where there is no module system."""
    return (STATIC / "plotly-basic.min.js").read_text(encoding="utf-8")
