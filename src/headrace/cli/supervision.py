"""Restarts the processes of `headrace up` that exit unexpectedly.

The delay before a restart grows with every exit soon after a start. A part stays down if it exits soon after its start
`MAX_FAILED_STARTS` times in a row, or because of invalid settings or an invalid command line; the other parts continue.
A server that cannot start stops the whole stack, because all parts need it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.errors import EmbeddedError
from headrace.runtime.backoff import Backoff

RESTART_BACKOFF = Backoff(base_s=1.0, longest_s=30.0)
STABLE_AFTER_S = 60.0  # a process that ran for longer than this started successfully
MAX_FAILED_STARTS = 5
BAD_USAGE, BAD_SETTINGS = 2, 3
PERMANENT_EXIT_CODES = (BAD_USAGE, BAD_SETTINGS)  # exit codes that a restart cannot fix

PrintStatus = Callable[[str], None]


class SupervisableProcess(Protocol):
    """A process that can be restarted: a part (`GuardedProcess`) or a server (`EmbeddedServer`)."""

    name: str

    def exit_code(self) -> int | None: ...

    def restart(self) -> None: ...

    def describe_log(self) -> str:
        """Return the path of the log and its last lines."""
        ...


@dataclass
class SupervisedProcess:
    process: SupervisableProcess
    required: bool  # the stack is stopped if this process stays down
    started_at: float = field(default_factory=time.monotonic)
    restart_at: float | None = None  # None: running, or down for good
    restarts: int = 0
    failures: int = 0  # consecutive exits soon after a start
    last_exit: int | None = None
    is_down: bool = False

    def build_document(self) -> dict[str, Any]:
        return {"restarts": self.restarts, "last_exit": self.last_exit, "down": self.is_down}


class Supervisor:
    """Restarts watched processes that exit. `check` must be called often; it does all the work."""

    def __init__(self, print_status: PrintStatus, on_change: Callable[[dict[str, Any]], None]) -> None:
        self._print_status = print_status
        self._on_change = on_change
        self._processes: dict[str, SupervisedProcess] = {}

    def watch(self, process: SupervisableProcess, *, required: bool = False) -> None:
        self._processes[process.name] = SupervisedProcess(process, required)

    def unwatch(self, name: str) -> None:
        """Stop watching a process, because it is about to be stopped."""
        self._processes.pop(name, None)

    def is_down(self, name: str) -> bool:
        return name in self._processes and self._processes[name].is_down

    def check(self) -> None:
        """Restart exited processes when their delay is over. Raises EmbeddedError if a required one stays down."""
        now = time.monotonic()
        for each in self._processes.values():
            if each.is_down:
                continue
            if each.restart_at is not None:
                if now >= each.restart_at:
                    self._restart(each)
            elif (code := each.process.exit_code()) is not None:
                self._handle_exit(each, code, f"exited unexpectedly (exit code {code})")

    def _restart(self, each: SupervisedProcess) -> None:
        each.restart_at, each.started_at = None, time.monotonic()
        each.restarts += 1
        try:
            each.process.restart()
        except EmbeddedError as error:
            self._handle_exit(each, error.exit_code, f"could not be restarted: {error}")
        else:
            self._report()

    def _handle_exit(self, each: SupervisedProcess, code: int, how: str) -> None:
        each.last_exit = code
        each.failures = each.failures + 1 if time.monotonic() - each.started_at < STABLE_AFTER_S else 1
        if code in PERMANENT_EXIT_CODES or each.failures >= MAX_FAILED_STARTS:
            each.is_down = True
            message = f"{each.process.name} {how} and stays down. {each.process.describe_log()}"
            if each.required:
                raise EmbeddedError(f"{message}\nAll other processes were stopped; the data was kept.")
            self._print_status(
                f"{message}\nAll other processes keep running. Fix the cause and start `headrace up` again."
            )
        else:
            pause_s = RESTART_BACKOFF.delay_s(each.failures, random.random())
            each.restart_at = time.monotonic() + pause_s
            self._print_status(
                f"{each.process.name} {how}; restarting in {pause_s:.1f} s. {each.process.describe_log()}"
            )
        self._report()

    def _report(self) -> None:
        self._on_change(
            {name: each.build_document() for name, each in self._processes.items() if each.last_exit is not None}
        )
