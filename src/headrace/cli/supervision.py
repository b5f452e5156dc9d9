"""The processes of `headrace up`: one that ends by itself is started again, and one that cannot start stays down.

The pause before a start grows with every end soon after a start. A part that ended `MOST_STARTS` times in a row like
that, or because of its settings or its command line, stays down, and the other parts go on. A server that cannot start
ends the stack: nothing works without it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.errors import EmbeddedError
from headrace.vitals.backoff import Backoff

PAUSES = Backoff(base_s=1.0, longest_s=30.0)
SOON_S = 60.0  # a process that ran for longer had started well
MOST_STARTS = 5
BAD_USAGE, BAD_SETTINGS = 2, 3
HOPELESS = (BAD_USAGE, BAD_SETTINGS)  # exit codes that another start would only repeat

Say = Callable[[str], None]


class Process(Protocol):
    """A part (`Child`) or a server (`EmbeddedServer`)."""

    name: str

    def exit_code(self) -> int | None: ...

    def restart(self) -> None: ...

    def describe_log(self) -> str:
        """Return where its log is, and how it ends."""
        ...


@dataclass
class Supervised:
    process: Process
    needed: bool  # the stack cannot go on without it
    started_at: float = field(default_factory=time.monotonic)
    restart_at: float | None = None  # None: it runs, or stays down
    restarts: int = 0
    failures: int = 0  # ends soon after a start, in a row
    last_exit: int | None = None
    is_down: bool = False

    def document(self) -> dict[str, Any]:
        return {"restarts": self.restarts, "last_exit": self.last_exit, "down": self.is_down}


class Supervisor:
    """Watches processes that run. `check` is to be called often; it raises EmbeddedError if a needed one stays down."""

    def __init__(self, say: Say, on_change: Callable[[dict[str, Any]], None]) -> None:
        self._say = say
        self._on_change = on_change
        self._all: dict[str, Supervised] = {}

    def watch(self, process: Process, *, needed: bool = False) -> None:
        self._all[process.name] = Supervised(process, needed)

    def forget(self, name: str) -> None:
        """It is about to be stopped."""
        self._all.pop(name, None)

    def is_down(self, name: str) -> bool:
        return name in self._all and self._all[name].is_down

    def check(self) -> None:
        now = time.monotonic()
        for each in self._all.values():
            if each.is_down:
                continue
            if each.restart_at is not None:
                if now >= each.restart_at:
                    self._restart(each)
            elif (code := each.process.exit_code()) is not None:
                self._ended(each, code, f"ended by itself (exit code {code})")

    def _restart(self, each: Supervised) -> None:
        each.restart_at, each.started_at = None, time.monotonic()
        each.restarts += 1
        try:
            each.process.restart()
        except EmbeddedError as error:
            self._ended(each, error.exit_code, f"could not be started again: {error}")
        else:
            self._report()

    def _ended(self, each: Supervised, code: int, how: str) -> None:
        each.last_exit = code
        each.failures = each.failures + 1 if time.monotonic() - each.started_at < SOON_S else 1
        if code in HOPELESS or each.failures >= MOST_STARTS:
            each.is_down = True
            message = f"{each.process.name} {how} and stays down. {each.process.describe_log()}"
            if each.needed:
                raise EmbeddedError(f"{message}\nEverything else was stopped, the data is kept.")
            self._say(f"{message}\nEverything else goes on. Correct the cause and start `headrace up` again.")
        else:
            pause_s = PAUSES.delay_s(each.failures, random.random())
            each.restart_at = time.monotonic() + pause_s
            self._say(
                f"{each.process.name} {how}; it is started again in {pause_s:.1f} s. {each.process.describe_log()}"
            )
        self._report()

    def _report(self) -> None:
        self._on_change({name: each.document() for name, each in self._all.items() if each.last_exit is not None})
