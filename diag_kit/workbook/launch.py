"""Start JupyterLab on the workbook: this machine only, with a token, in settings of its own, and stop it cleanly."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import webbrowser
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import DiagKitError, EvidenceError
from . import places

NEEDS = ("jupyterlab", "ipykernel", "ipywidgets", "anywidget")
WEBSOCKET_BYTES = 200 * 1024**2  # Jupyter's 10 MiB ends an upload without a word
START_SECONDS = 120


def launch(run: str | None = None, *, browser: bool = True, notebook: str = "workbook.ipynb") -> int:
    """Serve ``notebook`` until Ctrl-C, with ``run`` (a file or folder) loaded; returns the exit status.

    Raises:
        DiagKitError: the run is missing, JupyterLab is not installed or does not start. One line, what to do in it.
    """
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise DiagKitError(f"the workbook needs {', '.join(missing)}: pip install '.[workbook]' in the checkout")
    if run is not None and not Path(run).exists():
        raise EvidenceError(f"{run}: no such file or folder; give the log, or the folder that the run left")
    work = places.work_folder()
    copy = working_copy(notebook, work)
    port, token = _free_port(), secrets.token_hex(24)
    line, env, log = command(work, port), environment(work, token, run), work / ".lab" / "server.log"
    with log.open("wb") as out:  # the terminal is for the address
        server = subprocess.Popen(line, env=env, cwd=work, stdout=out, stderr=out, start_new_session=True)
    try:
        signal.signal(signal.SIGTERM, _interrupt)
        _wait_until_up(server, port, token, log)
        url = f"http://127.0.0.1:{port}/doc/tree/{copy.name}?token={token}"
        print(f"Workbook: {url}\nCtrl-C stops it. Working copy: {copy}", flush=True)
        if browser and _has_display():
            webbrowser.open(url)
        return server.wait()
    except KeyboardInterrupt:
        print("\nStopped.", flush=True)
        return 0
    finally:
        _stop(server)


def command(work: Path, port: int) -> list[str]:
    """The command line of the server. It listens on 127.0.0.1 alone; the token travels in the environment."""
    line = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--log-level=ERROR", "--ip=127.0.0.1", f"--port={port}",
        "--ServerApp.port_retries=0", f"--ServerApp.root_dir={work}",
        f"--ServerApp.tornado_settings={{'websocket_max_message_size': {WEBSOCKET_BYTES}}}",
        "--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly", f"--LabApp.extra_labextensions_path={places.PACKAGE / 'labextension'}",
    ]  # fmt: skip
    # In a container there is often no other account; the server listens on this machine alone and asks for its token.
    return line + (["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else [])


def environment(work: Path, token: str, run: str | None) -> dict[str, str]:
    """The server's environment: settings of its own (no news, no pop-ups), and what the notebook needs to know."""
    lab = work / ".lab"
    settings = lab / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(
        '{"fetchNews": "false", "checkForUpdates": false, "doNotDisturbMode": true}\n', encoding="utf-8"
    )
    env = dict(os.environ) | {
        "JUPYTER_TOKEN": token, "JUPYTER_PREFER_ENV_PATH": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "JUPYTERLAB_SETTINGS_DIR": str(lab / "settings"), "JUPYTERLAB_WORKSPACES_DIR": str(lab / "workspaces"),
        places.START: str(Path.cwd()), places.STARTED: datetime.now(UTC).isoformat(timespec="milliseconds"),
    }  # fmt: skip
    env.pop(places.RUN, None)
    return env | ({places.RUN: str(Path(run).resolve())} if run is not None else {})


def working_copy(name: str, work: Path) -> Path:
    """A copy of a shipped notebook that the user may change; what they changed is kept until the shipped one changes.

    Outputs are dropped: they point to widgets of a kernel that is gone.
    """
    shipped = (places.notebooks() / name).read_bytes()
    digest = hashlib.sha256(shipped).hexdigest()[:16]
    copy = work / name
    notebook: dict[str, Any] = json.loads(shipped)
    if copy.exists():
        try:
            theirs = json.loads(copy.read_text(encoding="utf-8"))
        except ValueError:
            theirs = {}
        if theirs.get("metadata", {}).get("diag_kit", {}).get("shipped") == digest:
            notebook = theirs
        else:
            copy.replace(copy.with_name(f"{copy.stem}-{time.strftime('%Y%m%d-%H%M%S')}.ipynb"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    notebook["metadata"].pop("widgets", None)
    notebook["metadata"]["diag_kit"] = {"shipped": digest}
    copy.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return copy


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _wait_until_up(server: subprocess.Popen[bytes], port: int, token: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    probe = urllib.request.Request(f"http://127.0.0.1:{port}/api/status", headers={"Authorization": f"token {token}"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline:
        if server.poll() is not None:
            said = log.read_text(encoding="utf-8", errors="replace").split("\n")
            last = next((line.strip() for line in reversed(said) if line.strip()), "without a word")
            raise DiagKitError(f"JupyterLab ended before it answered (status {server.returncode}): {last}; see {log}")
        try:
            direct.open(probe, timeout=5).close()
            return
        except OSError:
            time.sleep(0.1)
    raise DiagKitError(f"JupyterLab did not answer on 127.0.0.1:{port} within {START_SECONDS} s; see {log}")


def _has_display() -> bool:
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.terminate()  # the server ends its kernels
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
