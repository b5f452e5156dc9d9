"""The applications of `examples/` work: their own tests pass, and they run on a real Valkey as their READMEs say."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import wait_until
from tests.docs.blocks import ROOT, make_environment, read_blocks, run
from tests.ports import reserved_port

EXAMPLES = ROOT / "examples"
NAMES = ("batch", "shop", "site")
TESTS = {"site": ["manage.py", "test"]}
STOP_S = 120.0


@pytest.fixture
def env(valkey_url: str) -> dict[str, str]:
    return make_environment(HEADRACE_REDIS_URL=valkey_url, PYTHONUNBUFFERED="1", PYTHONDONTWRITEBYTECODE="1")


def copy_example(name: str, tmp_path: Path) -> Path:
    """Return a copy of an example: it writes beside its files."""
    return shutil.copytree(EXAMPLES / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.sqlite3"))


@contextmanager
def run_beside(folder: Path, env: Mapping[str, str], *arguments: str) -> Generator[Path]:
    """Run a Python program beside the body. Its value is the file with what the program prints."""
    output = folder / f"{arguments[-1].replace('/', '-')}.log"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=folder, env=env, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        yield output
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        finally:
            process.kill()
            process.wait()


def fetch(url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Any:
    """Return the JSON of an answer; None if there is no answer yet."""
    request = urllib.request.Request(url, body, dict(headers or {}))
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
    except OSError:
        return None


@pytest.mark.parametrize("name", NAMES)
def test_the_tests_of_an_example_pass(name: str, tmp_path: Path) -> None:
    folder = copy_example(name, tmp_path)
    command = TESTS.get(name, ["-m", "pytest", "-q", "-p", "no:randomly", "--rootdir", str(folder)])
    run([sys.executable, *command], folder, make_environment())


@pytest.mark.parametrize("name", NAMES)
def test_a_readme_names_files_that_exist(name: str) -> None:
    folder = EXAMPLES / name
    text = folder.joinpath("README.md").read_text()
    assert any(block.language == "sh" for block in read_blocks(folder / "README.md"))
    listed = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    assert not {each for each in listed if not folder.joinpath(each).exists()}


@pytest.mark.slow
def test_the_shop_serves_orders(tmp_path: Path, env: dict[str, str]) -> None:
    folder = copy_example("shop", tmp_path)
    order = json.dumps({"number": 7, "email": "ann@example.com", "items": [{"sku": "tea", "price": "4.50"}]}).encode()
    headers = {"X-Api-Key": "key-of-acme", "Content-Type": "application/json"}
    with (
        reserved_port() as port,
        run_beside(folder, env, "-m", "headrace", "worker", "tasks:app") as worker,
        run_beside(folder, env, "-m", "uvicorn", "web:web", "--port", str(port)),
    ):
        url = f"http://127.0.0.1:{port}/orders"
        assert wait_until(lambda: fetch(url, order, headers), "the shop answers")["job"] == "order-7"
        found = wait_until(lambda: fetch(f"{url}/7?wait=30", None, headers), "the order is charged")
        assert found == {"state": "done", "total": "4.50"}
        wait_until(lambda: "acme: 'Order 7: 4.50' to ann@example.com" in worker.read_text(), "the receipt is sent")


@pytest.mark.slow
def test_the_batch_prints_a_result_per_file(tmp_path: Path, env: dict[str, str]) -> None:
    folder, files = copy_example("batch", tmp_path), tmp_path / "files"
    files.mkdir()
    files.joinpath("a.txt").write_text("one two\nthree\n")
    files.joinpath("b.txt").write_text("four\n")
    with run_beside(folder, env, "-m", "headrace", "worker", "tasks:app"):
        printed = run([sys.executable, "run.py", str(files)], folder, env)
    assert f"1 of 2: {files}/a.txt: 2 lines, 3 words" in printed
    assert "2 files, 0 failed" in printed


@pytest.mark.slow
def test_the_site_welcomes_subscribers(tmp_path: Path, env: dict[str, str]) -> None:
    folder = copy_example("site", tmp_path)
    run([sys.executable, "manage.py", "migrate", "--run-syncdb"], folder, env)
    with (
        reserved_port() as port,
        run_beside(folder, env, "manage.py", "headrace_worker") as worker,
        run_beside(folder, env, "manage.py", "runserver", "--noreload", str(port)),
    ):
        site = f"http://127.0.0.1:{port}"
        answer = wait_until(lambda: fetch(f"{site}/subscribe", b"email=ann@example.com"), "the site answers")
        expected = {"status": "SUCCESSFUL", "result": "ann@example.com"}
        wait_until(lambda: fetch(f"{site}/tasks/{answer['task']}") == expected, "the task has run", every_s=0.2)
        assert "Thank you for subscribing." in worker.read_text()
