"""The quick start of the README runs as it is printed: the producer and the worker, on a real Valkey."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import wait_until
from tests.docs.blocks import ROOT, collect_files, make_environment, read_blocks, run, write_files

README = ROOT / "README.md"
LONGEST = 40
STOP_S = 120.0


@contextmanager
def run_worker(folder: Path, env: dict[str, str], *arguments: str) -> Generator[Path]:
    """Run `headrace worker` beside the body. Its value is the file with what the worker prints."""
    output = folder / "worker.log"
    with output.open("wb") as file:
        worker = subprocess.Popen(
            [sys.executable, "-m", "headrace", "worker", *arguments],
            cwd=folder,
            env=env | {"PYTHONUNBUFFERED": "1"},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield output
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(STOP_S) == 0, output.read_text()
        assert "worker stopped" in output.read_text()
    finally:
        worker.kill()
        worker.wait()


def test_the_quick_start_runs(tmp_path: Path, valkey_url: str) -> None:
    files = collect_files(read_blocks(README))
    assert files.keys() == {"app.py"}
    write_files(tmp_path, files)
    env = make_environment(HEADRACE_REDIS_URL=valkey_url)
    with run_worker(tmp_path, env, "app:app") as output:
        assert run([sys.executable, "app.py"], tmp_path, env).split()[1:] == ["4.50"]
        printed = "acme: order 42, 4.50 paid, attempt 1"
        wait_until(lambda: printed in output.read_text(), "the receipt is sent")


def test_the_quick_start_is_short() -> None:
    [program] = [block for block in read_blocks(README) if block.language == "python"]
    assert program.text.count("\n") <= LONGEST


def test_commands_of_the_readme_exist() -> None:
    """The first words of commands; what they do is tested elsewhere."""
    from headrace.cli.main import COMMANDS

    text = "\n".join(block.text for block in read_blocks(README) if block.language == "sh")
    assert set(re.findall(r"^headrace (\w+)", text, re.MULTILINE)) == {"up", "worker"}
    assert {"up", "worker"} <= COMMANDS.keys()
    assert re.findall(r"^\./hr (.*)$", text, re.MULTILINE) == ["up --demo", "test"]
