"""Run workers as processes of this machine: start, stop gracefully, replace after unexpected exits.

Surplus workers get one SIGTERM, finish or return their jobs, and no longer count. A worker that exits unexpectedly is
replaced; repeated early exits back off exponentially.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.runtime.backoff import Backoff

log = logging.getLogger(__name__)

SHORT_LIFE_S = 10.0
RESTART_BACKOFF = Backoff(base_s=1.0, longest_s=60.0)
KILL_AFTER_S = 15.0
"""A worker that is still running this long after its grace period is killed."""


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    started: float
    stop_sent_at: float | None = None  # time of the SIGTERM; None if none was sent

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None


class LocalWorkers:
    """Local processes of one worker type. Not thread-safe."""

    def __init__(self, name: str, command: Sequence[str], grace_s: float = 30.0) -> None:
        self._name = name
        self._command = list(command)
        self._grace_s = grace_s
        self._children: list[_Child] = []
        self._wanted = 0
        self._failures = 0
        self._failed_at = self._retry_at = float("-inf")

    @property
    def pids(self) -> list[int]:
        return [child.process.pid for child in self._list_active()]

    def count(self) -> int:
        """Return the running workers, without those that are stopping."""
        self._reap()
        return len(self._list_active())

    def scale(self, wanted: int, sentence: str = "") -> None:
        self._wanted = wanted
        self.reconcile()

    def stand_down(self) -> None:
        self.scale(0)

    def reconcile(self) -> None:
        """Start or stop workers until their number is the last wanted one."""
        self._reap()
        staying = self._list_active()
        for child in staying[self._wanted :]:
            child.stop_sent_at = time.monotonic()
            child.process.send_signal(signal.SIGTERM)
        missing = self._wanted - len(staying)
        while missing > 0 and time.monotonic() >= self._retry_at and self._start():
            missing -= 1
        self._kill_overdue()

    def stop(self, timeout_s: float | None = None) -> None:
        """Stop all workers and wait.

        Workers that exceed the timeout are killed; their jobs return when their leases expire.
        """
        self.scale(0)
        deadline = time.monotonic() + (self._grace_s + KILL_AFTER_S if timeout_s is None else timeout_s)
        for child in self._children:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
        self._reap()

    def _list_active(self) -> list[_Child]:
        return [child for child in self._children if child.stop_sent_at is None and not child.has_ended]

    def _start(self) -> bool:
        """Start one worker. Return False if the process cannot be started."""
        try:
            # A session of its own, so that Ctrl-C reaches only the autoscaler, which stops its workers gracefully.
            process = subprocess.Popen(self._command, stdin=subprocess.PIPE, start_new_session=True)
        except OSError as error:
            wait_s = self._schedule_retry()
            log.warning(
                "could not start a worker of type %s: %s; retrying in %.0f s",
                *(self._name, error, wait_s),
                extra={"action": "worker_not_started"},
            )
            return False
        self._children.append(_Child(process, time.monotonic()))
        log.info("started worker %s of type %s", process.pid, self._name, extra={"action": "worker_started"})
        return True

    def _reap(self) -> None:
        for child in [child for child in self._children if child.has_ended]:
            self._children.remove(child)
            if child.process.stdin is not None:
                child.process.stdin.close()
            if child.stop_sent_at is None:
                self._record_unexpected_exit(child)

    def _record_unexpected_exit(self, child: _Child) -> None:
        """Log a worker that exited without SIGTERM and schedule its replacement."""
        lived_s = time.monotonic() - child.started
        if lived_s >= SHORT_LIFE_S:
            self._failures = 0
        # Workers that were started together and exit together count as one failure.
        again = lived_s >= SHORT_LIFE_S or child.started >= self._failed_at
        wait_s = self._schedule_retry() if again else max(0.0, self._retry_at - time.monotonic())
        log.warning(
            "worker %s of type %s exited unexpectedly after %.0f s (code %s); replacing it in %.0f s",
            *(child.process.pid, self._name, lived_s, child.process.returncode, wait_s),
            extra={"action": "worker_died"},
        )

    def _schedule_retry(self) -> float:
        """Record a failure and return the delay before the next start, in seconds: 0 after the first failure in a row,
        then exponential."""
        self._failures += 1
        wait_s = RESTART_BACKOFF.full_delay_s(self._failures - 1) if self._failures > 1 else 0.0
        self._failed_at = time.monotonic()
        self._retry_at = self._failed_at + wait_s
        return wait_s

    def _kill_overdue(self) -> None:
        for child in self._children:
            if child.stop_sent_at is not None and time.monotonic() - child.stop_sent_at > self._grace_s + KILL_AFTER_S:
                child.process.kill()
