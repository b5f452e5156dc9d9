"""The tutorial works word by word: its files are written and its commands run in order, in an empty folder.

Labels of its blocks: `sh up` and `sh worker` are commands that go on in a terminal of this name, `text up` and
`text worker` what appears there next, `sh install` is not run. A `text` block without a label is what the commands
before it print, `text eventually` what they print when they are repeated. `…` stands for anything.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.docs.blocks import ROOT, CodeBlock, make_environment, read_blocks
from tests.stack import PATIENT

TUTORIAL = ROOT / "docs" / "tutorial.md"
TERMINALS = ("up", "worker")
APPEARS_S = 480.0
STOP_S = 600.0


def find_lines(expected: str, output: str) -> int | None:
    """Return the position after the expected lines, in their order with others between; None if one is missing."""
    position = 0
    for line in expected.splitlines():
        if line == "…":
            continue
        pattern = ".*".join(map(re.escape, line.split("…")))
        found = re.compile(pattern).search(output, position)
        if found is None:
            return None
        position = found.end()
    return position


class Terminal:
    """A command that goes on, and what it prints."""

    def __init__(self, command: str, output: Path, process: subprocess.Popen[bytes]) -> None:
        self._command = command
        self._output = output
        self._process = process
        self._read_to = 0

    def wait_for(self, expected: str) -> None:
        """Wait until the lines appear, after those that were waited for before."""
        wait_until(lambda: self._has(expected), f"{self._command} prints {expected!r}", APPEARS_S, 0.2)

    def _has(self, expected: str) -> bool:
        text = self._output.read_text("utf-8", "replace")
        assert self._process.poll() is None, f"{self._command} has ended:\n{text}"
        position = find_lines(expected, text[self._read_to :])
        if position is None:
            return False
        self._read_to += position
        return True


@contextmanager
def open_terminal(command: str, folder: Path, env: dict[str, str]) -> Generator[Terminal]:
    output = folder.parent / f"{shlex.split(command)[1]}.log"
    with output.open("wb") as file:
        process = subprocess.Popen(shlex.split(command), cwd=folder, env=env, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield Terminal(command, output, process)
        process.send_signal(signal.SIGINT)
        process.wait(STOP_S)
    finally:
        process.kill()
        process.wait()


class Reader:
    """Follows the tutorial in a folder."""

    def __init__(self, folder: Path, env: dict[str, str], stack: ExitStack) -> None:
        self._folder = folder
        self._env = env
        self._stack = stack
        self._terminals: dict[str, Terminal] = {}
        self._command = ""
        self._output = ""

    def follow(self, block: CodeBlock) -> None:
        match block.language, block.label:
            case "sh", "install":
                pass
            case "sh", "":
                self._command = block.text
                self._output = self._run()
            case "sh", name:
                terminal = self._stack.enter_context(open_terminal(block.text, self._folder, self._env))
                self._terminals[name] = terminal
            case "text", "":
                assert find_lines(block.text, self._output) is not None, self._output
            case "text", "eventually":
                wait_until(lambda: find_lines(block.text, self._run()), self._command, APPEARS_S, 1.0)
            case "text", name:
                self._terminals[name].wait_for(block.text)
            case _, name:
                assert name, f"line {block.line}: a block without a file name"
                self._folder.joinpath(name).write_text(block.text)

    def _run(self) -> str:
        command = ["sh", "-e", "-c", self._command]
        done = subprocess.run(command, cwd=self._folder, env=self._env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{self._command}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_tutorial_works_word_by_word(tmp_path: Path) -> None:
    folder = tmp_path / "hello-headrace"
    folder.mkdir()
    env = make_environment(**PATIENT, PYTHONUNBUFFERED="1", COLUMNS="200") | {"HOME": os.environ.get("HOME", "")}
    env.pop("VIRTUAL_ENV", None)
    with ExitStack() as stack:
        reader = Reader(folder, env, stack)
        for block in read_blocks(TUTORIAL):
            reader.follow(block)


def test_the_tutorial_installs_extras_that_exist() -> None:
    import tomllib

    extras = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text())["project"]["optional-dependencies"]
    [block] = [block for block in read_blocks(TUTORIAL) if block.label == "install"]
    [named] = re.findall(r"headrace\[([\w,]+)\]", block.text)
    assert set(named.split(",")) <= extras.keys()


def test_expected_lines_are_found_in_order() -> None:
    output = "one\ntwo 22 three\nfour\n"
    assert find_lines("one\n…\ntwo … three\n", output) == len("one\ntwo 22 three")
    assert find_lines("four\none\n", output) is None
