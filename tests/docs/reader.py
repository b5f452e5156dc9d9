"""Follows a page of the documentation: its files are written and its commands run in order, in one folder.

Labels of blocks: `sh NAME` is a command that goes on in a terminal of this name, and `text NAME` what appears there
next. `sh` runs to its end, `sh eventually` is repeated until it succeeds. A `text` block without a label is what the
commands before it print, `text eventually` what they print when they are repeated. Other blocks with a label are files
of that name. `…` stands for anything.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.conftest import wait_until
from tests.docs.blocks import CodeBlock

APPEARS_S = 900.0  # Spark takes minutes to start on a busy machine
STOP_S = 600.0
ASSIGNMENT = re.compile(r"[A-Z_]+=.*")


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

    def check_runs(self) -> str:
        """Return what the command has printed. Fails if it has ended."""
        text = self._output.read_text("utf-8", "replace")
        assert self._process.poll() is None, f"{self._command} has ended:\n{text}"
        return text

    def _has(self, expected: str) -> bool:
        text = self.check_runs()
        position = find_lines(expected, text[self._read_to :])
        if position is None:
            return False
        self._read_to += position
        return True


def handles(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler for a signal: it ends cleanly only after it was installed."""
    status = Path(f"/proc/{pid}/status").read_text("utf-8")
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (number - 1) & 1)


@contextmanager
def open_terminal(
    name: str, command: str, folder: Path, env: dict[str, str], stop: signal.Signals
) -> Generator[Terminal]:
    """Run a command beside the body, then stop it with a signal. On SIGTERM, `headrace` must end with code 0."""
    words = shlex.split(command)
    while ASSIGNMENT.fullmatch(words[0]):
        variable, _, value = words.pop(0).partition("=")
        env = env | {variable: value}
    output = folder.parent / f"{name}.log"
    with output.open("wb") as file:
        process = subprocess.Popen(words, cwd=folder, env=env, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield Terminal(command, output, process)
        if words[0] == "headrace" and stop == signal.SIGTERM:
            wait_until(
                lambda: process.poll() is not None or handles(process.pid, stop), f"{command} handles {stop.name}"
            )
        process.send_signal(stop)
        code = process.wait(STOP_S)
        assert code == 0 or stop != signal.SIGTERM or words[0] != "headrace", (
            f"{command} ended with {code}:\n{output.read_text()}"
        )
    finally:
        process.kill()
        process.wait()


class Reader:
    """Follows a page in a folder. `adapt` changes commands and files, for example ports, before they are used."""

    def __init__(
        self,
        folder: Path,
        env: dict[str, str],
        stack: ExitStack,
        *,
        stop: signal.Signals = signal.SIGINT,
        adapt: Callable[[str], str] = str,
    ) -> None:
        self.env = env
        self.terminals: dict[str, Terminal] = {}
        self._folder = folder
        self._stack = stack
        self._stop = stop
        self._adapt = adapt
        self._command = ""
        self._output = ""

    def follow(self, block: CodeBlock) -> None:
        text = self._adapt(block.text)
        match block.language, block.label:
            case "sh", "":
                self._command = text
                self._output = self._run()
            case "sh", "eventually":
                self._command = text
                wait_until(self._succeeds, text, APPEARS_S, 1.0)
            case "sh", name:
                terminal = open_terminal(name, text, self._folder, self.env, self._stop)
                self.terminals[name] = self._stack.enter_context(terminal)
            case "text", "":
                assert find_lines(text, self._output) is not None, self._output
            case "text", "eventually":
                wait_until(lambda: find_lines(text, self._run()), self._command, APPEARS_S, 1.0)
            case "text", name:
                self.terminals[name].wait_for(text)
            case _, name:
                assert name, f"line {block.line}: a block without a file name"
                self._folder.joinpath(name).write_text(text)

    def _succeeds(self) -> bool:
        for terminal in self.terminals.values():
            terminal.check_runs()
        done = self._execute()
        self._output = done.stdout
        return done.returncode == 0

    def _run(self) -> str:
        done = self._execute()
        assert done.returncode == 0, f"{self._command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _execute(self) -> subprocess.CompletedProcess[str]:
        command = ["sh", "-e", "-c", self._command]
        return subprocess.run(command, cwd=self._folder, env=self.env, capture_output=True, text=True, check=False)
