"""`headrace worker --processes N` and `--reload`: runs worker processes, and restarts those that end.

Each child is the same command with one process. A child that asks for a restart (exit code EXIT_RESTART) is replaced at
once, one that fails after a growing delay; exit codes that a restart cannot fix end all. SIGHUP restarts the children
one after the other, so that the others go on. Children end with their parent: each holds the read end of a pipe, which
is closed when the parent dies.

With `--reload` a changed source file restarts all children at once. A child that cannot load its tasks is started again
after the next change.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.cli.main import EXIT_BUG
from headrace.cli.source_watcher import SourceWatcher
from headrace.cli.supervision import PERMANENT_EXIT_CODES, RESTART_BACKOFF, STABLE_AFTER_S

log = logging.getLogger(__name__)

EXIT_RESTART = 75  # EX_TEMPFAIL: nothing is wrong that a new process would not solve
PARENT_PIPE = "_HEADRACE_PARENT_PIPE"
"""Environment variable of a child, not a setting: the number of the pipe's file descriptor."""
KILL_AFTER_S = 5.0  # in addition to the grace period
CHECK_S = 0.2
SOURCE_EXIT_CODES = (*PERMANENT_EXIT_CODES, EXIT_BUG)
"""Exit codes of a child that cannot import its tasks. With --reload it waits for a changed source file."""
MAX_NAMED_FILES = 3


@dataclass
class WorkerChild:
    number: int
    process: subprocess.Popen[bytes]
    started_at: float = field(default_factory=time.monotonic)


class WorkerProcesses:
    """The children of a supervising worker command. `build_command` returns the command line of a child by its
    number. `sources`: restart the children when these files change; None: never."""

    def __init__(
        self,
        count: int,
        build_command: Callable[[int], Sequence[str]],
        grace_s: float,
        sources: SourceWatcher | None = None,
    ) -> None:
        self._count = count
        self._build_command = build_command
        self._grace_s = grace_s
        self._sources = sources
        self._read_end, self._write_end = os.pipe()
        self._children: dict[int, WorkerChild] = {}
        self._restart_at: dict[int, float] = {}
        self._failures = [0] * count

    def run_forever(self, stop: threading.Event, restart: threading.Event) -> int:
        """Run the children until `stop` is set; restart them one by one whenever `restart` is set. Return the exit
        code."""
        for number in range(self._count):
            self._start(number)
        try:
            while not stop.wait(CHECK_S):
                for child in list(self._children.values()):
                    code = child.process.poll()
                    if self._sources is not None and code in SOURCE_EXIT_CODES:
                        self._wait_for_change(child, code)
                        continue
                    if code in PERMANENT_EXIT_CODES:
                        log.error(
                            "worker process %d ended with exit code %d, which a restart cannot fix; stopping all",
                            child.number,
                            code,
                            extra={"action": "worker_process_failed"},
                        )
                        return code
                    if code is not None:
                        self._plan_restart(child, code)
                self._start_due()
                if self._sources is not None and (changed := self._sources.find_changes()):
                    self._reload(self._sources, changed, stop)
                if restart.is_set():
                    restart.clear()
                    self._restart_all(stop)
            return 0
        finally:
            self._stop(list(self._children.values()))

    def _start(self, number: int) -> None:
        process = subprocess.Popen(
            self._build_command(number),
            env={**os.environ, **self._build_reload_env(), PARENT_PIPE: str(self._read_end)},
            pass_fds=[self._read_end],
            # In a session of its own: Ctrl-C reaches only the parent, which stops its children.
            start_new_session=True,
        )
        self._children[number] = WorkerChild(number, process)
        log.info("started worker process %d (pid %d)", number, process.pid, extra={"action": "worker_process_started"})

    def _build_reload_env(self) -> dict[str, str]:
        """With --reload, children write no bytecode. Python compares it with the source by size and whole seconds, so
        that a change within the second of the last import could be missed."""
        return {} if self._sources is None else {"PYTHONDONTWRITEBYTECODE": "1"}

    def _wait_for_change(self, child: WorkerChild, code: int) -> None:
        del self._children[child.number]
        log.error(
            "worker process %d ended with exit code %d (see the error above); waiting for a Python file to change",
            child.number,
            code,
            extra={"action": "worker_process_waits"},
        )

    def _reload(self, sources: SourceWatcher, changed: Sequence[str], stop: threading.Event) -> None:
        """Stop all children, which may finish their jobs, and start them with the changed files."""
        more = f" and {len(changed) - MAX_NAMED_FILES} more" if len(changed) > MAX_NAMED_FILES else ""
        log.warning(
            "restarting %d worker processes, running jobs have %g s to finish: %s%s changed",
            *(self._count, self._grace_s, ", ".join(changed[:MAX_NAMED_FILES]), more),
            extra={"action": "worker_reload"},
        )
        self._stop(list(self._children.values()))
        self._children.clear()
        self._restart_at.clear()
        self._failures = [0] * self._count
        sources.forget_changes()  # the new processes load the files as they are now
        for number in range(self._count):
            if not stop.is_set():
                self._start(number)

    def _plan_restart(self, child: WorkerChild, code: int) -> None:
        del self._children[child.number]
        if code in (0, EXIT_RESTART):
            self._failures[child.number], pause_s = 0, 0.0
        else:
            is_stable = time.monotonic() - child.started_at >= STABLE_AFTER_S
            self._failures[child.number] = 1 if is_stable else self._failures[child.number] + 1
            pause_s = RESTART_BACKOFF.delay_s(self._failures[child.number], random.random())
        self._restart_at[child.number] = time.monotonic() + pause_s
        log.warning(
            "worker process %d (pid %d) ended with exit code %d; restarting in %.1f s",
            child.number,
            child.process.pid,
            code,
            pause_s,
            extra={"action": "worker_process_ended"},
        )

    def _start_due(self) -> None:
        for number, at in list(self._restart_at.items()):
            if time.monotonic() >= at:
                del self._restart_at[number]
                self._start(number)

    def _restart_all(self, stop: threading.Event) -> None:
        """Replace one child after the other. Each finishes its jobs before its successor starts."""
        for number in range(self._count):
            if stop.is_set():
                return
            self._restart_at.pop(number, None)
            if (child := self._children.pop(number, None)) is not None:
                self._stop([child])
            self._start(number)

    def _stop(self, children: Sequence[WorkerChild]) -> None:
        """End children in an orderly way, all at the same time; kill those that take longer than the grace period."""
        for child in children:
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + self._grace_s + KILL_AFTER_S
        for child in children:
            try:
                child.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.error("killing worker process %d", child.number, extra={"action": "worker_process_killed"})
                child.process.kill()
                child.process.wait()


def build_child_command(number: int, metrics_port: int | None) -> list[str]:
    """Return the command line of a child: that of this process, with one process. Children have consecutive metrics
    ports."""
    port = [] if not metrics_port else ["--metrics-port", str(metrics_port + number)]
    return [sys.executable, "-m", "headrace", *sys.argv[1:], "--processes", "1", *port]


def is_supervised() -> bool:
    """Return True in a child of WorkerProcesses, before `stop_with_parent` was called."""
    return PARENT_PIPE in os.environ


def stop_with_parent() -> None:
    """In a child of WorkerProcesses, end this process in an orderly way when its parent has ended."""
    descriptor = os.environ.pop(PARENT_PIPE, None)
    if descriptor is None:
        return

    def wait_for_parent() -> None:
        with os.fdopen(int(descriptor), "rb") as pipe:
            pipe.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait_for_parent, name="parent", daemon=True).start()
