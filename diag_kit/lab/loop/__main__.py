"""The child of ``child.inspect_apart``: a request on standard input, an answer as a line of standard output.

    python -m diag_kit.lab.loop PARENT
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from ..running import end_with


def main() -> None:
    """Answer one request; whatever the user's code prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = json.loads(sys.stdin.read())
    from ...errors import DiagKitError
    from .result import Comparison

    try:
        try:
            from .fix import compare, try_fix
            from .survey import inspect_loop
        except ModuleNotFoundError as error:
            raise DiagKitError(f"{error}; looking at a loop needs torch: pip install 'diag-kit[torch]'") from None
        sys.path.insert(0, str(Path.cwd()))  # where ``package.module:function`` is looked for
        named = {"settings": request["settings"]} | request["how"]
        loop = inspect_loop(request["factory"], **named)
        found: list[Comparison] = []
        if request["change"]:
            found += compare(request["factory"], change=request["change"], before=loop, **named)
        if request["try_fix"]:
            found += try_fix(request["factory"], before=loop, **named)
            if not loop.holdings:
                loop = replace(loop, notes=(*loop.notes, "nothing stays alive, so there is no line to try an edit on"))
        answer = {"loop": loop.to_json(), "comparisons": [one.to_json() for one in found]}
    except DiagKitError as error:
        answer = {"error": str(error)}
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    main()
    os._exit(0)  # threads that the user's code left running would keep the process
