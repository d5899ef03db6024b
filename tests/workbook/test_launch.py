"""The launcher: what it refuses in one line, what it starts, and what it does to a notebook that a person changed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diag_kit.errors import DiagKitError, EvidenceError
from diag_kit.workbook import launch, places


def test_missing_jupyter_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the workbook's packages the line names them and the extra to install."""
    monkeypatch.setattr(launch, "NEEDS", ("jupyterlab", "no_such_package_of_ours"))
    with pytest.raises(DiagKitError, match=r"needs no_such_package_of_ours: pip install '\.\[workbook\]'"):
        launch.launch(browser=False)


def test_missing_run_is_one_line() -> None:
    """A path that is not there is refused before a server starts."""
    with pytest.raises(EvidenceError, match="gone: no such file or folder"):
        launch.launch("gone", browser=False)


def test_launcher_loads_without_jupyter() -> None:
    """Importing the launcher imports no widget library: it must be able to say that they are missing."""
    code = "import sys, diag_kit.workbook.launch; print({'ipywidgets', 'anywidget', 'jupyterlab'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_command_listens_here_alone(tmp_path: Path) -> None:
    """127.0.0.1, no retries on another port, a raised upload limit, and no token where `ps` shows it."""
    line = launch.command(tmp_path, 9999)
    assert "--ip=127.0.0.1" in line
    assert "--ServerApp.port_retries=0" in line
    assert any("websocket_max_message_size" in part for part in line)
    assert not any("token" in part.lower() for part in line)


def test_root_may_start_it_and_nobody_else_is_let_past_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container root is often the only account; for other accounts the flag stays off."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "--allow-root" in launch.command(tmp_path, 9999)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "--allow-root" not in launch.command(tmp_path, 9999)


def test_environment_carries_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run as an absolute path, the folder of the command, settings without news; an old run does not leak in."""
    monkeypatch.setenv(places.RUN, "/old")
    assert places.RUN not in launch.environment(tmp_path, "t", None)
    env = launch.environment(tmp_path, "t", "some.log")
    assert env[places.RUN] == str(Path.cwd() / "some.log")
    assert env[places.START] == str(Path.cwd())
    (settings,) = Path(env["JUPYTERLAB_SETTINGS_DIR"]).rglob("notification.jupyterlab-settings")
    assert json.loads(settings.read_text())["fetchNews"] == "false"


def test_working_copy_keeps_changes_until_the_shipped_notebook_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person's cells survive a second start without their outputs; a newer shipped notebook moves them aside."""
    copy = launch.working_copy("workbook.ipynb", tmp_path)
    notebook = json.loads(copy.read_text())
    notebook["cells"].append({"cell_type": "code", "id": "mine", "metadata": {}, "source": "1 + 1", "execution_count": 3,
                              "outputs": [{"output_type": "stream", "name": "stdout", "text": "2"}]})  # fmt: skip
    copy.write_text(json.dumps(notebook))
    again = json.loads(launch.working_copy("workbook.ipynb", tmp_path).read_text())
    assert again["cells"][-1] == notebook["cells"][-1] | {"outputs": [], "execution_count": None}

    newer = tmp_path / "shipped"
    newer.mkdir()
    shipped = json.loads((places.notebooks() / "workbook.ipynb").read_text())
    (newer / "workbook.ipynb").write_text(json.dumps(shipped, indent=3))
    monkeypatch.setattr(places, "notebooks", lambda: newer)
    fresh = json.loads(launch.working_copy("workbook.ipynb", tmp_path).read_text())
    assert [cell["id"] for cell in fresh["cells"]] == [cell["id"] for cell in shipped["cells"]]
    (aside,) = tmp_path.glob("workbook-*.ipynb")
    assert "mine" in aside.read_text()


def test_a_damaged_working_copy_is_moved_aside(tmp_path: Path) -> None:
    """A file that is no notebook does not stop the start, and is not lost."""
    (tmp_path / "workbook.ipynb").write_text("half a no")
    launch.working_copy("workbook.ipynb", tmp_path)
    (aside,) = tmp_path.glob("workbook-*.ipynb")
    assert aside.read_text() == "half a no"


def test_an_unwritable_work_folder_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line names the folder and the variable that sets another."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("DIAG_KIT_DATA", str(blocked))
    with pytest.raises(DiagKitError, match="DIAG_KIT_DATA"):
        places.work_folder()


def test_a_server_that_does_not_start_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server said last, and where the rest is."""
    monkeypatch.setenv("DIAG_KIT_DATA", str(tmp_path))
    monkeypatch.setattr(
        launch, "command", lambda work, port: [sys.executable, "-c", "raise SystemExit('no port left')"]
    )
    with pytest.raises(DiagKitError, match=r"status 1\): no port left; see .*server.log"):
        launch.launch(browser=False)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_stops_cleanly_and_takes_its_server_along(tmp_path: Path, how: signal.Signals) -> None:
    """The URL is printed, an interrupt ends with status 0 and no traceback, and no server is left behind."""
    env = os.environ | {"DIAG_KIT_DATA": str(tmp_path / "data"), "PYTHONUNBUFFERED": "1"}
    code = "from diag_kit.workbook.launch import launch; raise SystemExit(launch(browser=False))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        url = next(line for line in lines if "http://127.0.0.1:" in line)
        port = int(url.split("127.0.0.1:")[1].split("/")[0])
        process.send_signal(how)
        rest, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "Traceback" not in rest
    assert not listening(port)


def listening(port: int) -> bool:
    """Whether anything answers there, after the time that a closing server may take."""
    import socket

    for _ in range(20):
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) != 0:
                return False
        time.sleep(0.1)
    return True
