"""Workers as processes of this machine: started, stopped in an orderly way, and replaced when they die.

A worker that shall go is told so once (SIGTERM): it finishes its jobs or returns them, and counts no more from then on.
One that dies by itself is replaced; one that dies at once, again and again, is tried less and less often.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

log = logging.getLogger(__name__)

SHORT_LIFE_S = 10.0
RETRY_S = 1.0
MAX_RETRY_S = 60.0
KILL_AFTER_S = 15.0
"""How long after its grace a worker that does not end is killed."""


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    started: float
    told: float | None = None  # when it was told to stop

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None


class LocalWorkers:
    """Of one worker type. Used by one thread."""

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
        """Of those that are meant to run."""
        return [child.process.pid for child in self._staying()]

    def count(self) -> int:
        """What really runs now, without those that were told to stop."""
        self._bury()
        return len(self._staying())

    def scale(self, wanted: int, sentence: str = "") -> None:
        self._wanted = wanted
        self.mend()

    def let_go(self) -> None:
        self.scale(0)

    def mend(self) -> None:
        """As many as were last wanted."""
        self._bury()
        staying = self._staying()
        for child in staying[self._wanted :]:
            self._tell(child)
        missing = self._wanted - len(staying)
        while missing > 0 and time.monotonic() >= self._retry_at and self._start():
            missing -= 1
        self._kill_late()

    def stop(self, timeout_s: float | None = None) -> None:
        """All of them, and wait: those that do not end in time are killed, and their jobs return by their leases."""
        self.scale(0)
        deadline = time.monotonic() + (self._grace_s + KILL_AFTER_S if timeout_s is None else timeout_s)
        for child in self._children:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
        self._bury()

    def _staying(self) -> list[_Child]:
        return [child for child in self._children if child.told is None and not child.has_ended]

    def _start(self) -> bool:
        """False: it cannot be started."""
        try:
            # Its own session: Ctrl-C reaches the autoscaler alone, which stops its workers in order.
            process = subprocess.Popen(self._command, stdin=subprocess.PIPE, start_new_session=True)
        except OSError as error:
            wait_s = self._failed()
            log.warning(
                "a worker of %s cannot be started: %s; it is tried again in %.0f s",
                *(self._name, error, wait_s),
                extra={"action": "worker_not_started"},
            )
            return False
        self._children.append(_Child(process, time.monotonic()))
        log.info("worker %s of %s started", process.pid, self._name, extra={"action": "worker_started"})
        return True

    def _tell(self, child: _Child) -> None:
        child.told = time.monotonic()
        child.process.send_signal(signal.SIGTERM)

    def _bury(self) -> None:
        for child in [child for child in self._children if child.has_ended]:
            self._children.remove(child)
            if child.process.stdin is not None:
                child.process.stdin.close()
            if child.told is None:
                self._mourn(child)

    def _mourn(self, child: _Child) -> None:
        """One that ended without being told to."""
        lived_s = time.monotonic() - child.started
        if lived_s >= SHORT_LIFE_S:
            self._failures = 0
        # Many that were started together and die together have failed once, not again and again.
        again = lived_s >= SHORT_LIFE_S or child.started >= self._failed_at
        wait_s = self._failed() if again else max(0.0, self._retry_at - time.monotonic())
        log.warning(
            "worker %s of %s ended by itself after %.0f s (code %s); it is replaced in %.0f s",
            *(child.process.pid, self._name, lived_s, child.process.returncode, wait_s),
            extra={"action": "worker_died"},
        )

    def _failed(self) -> float:
        """How long to wait now: not at all after the first of several failures in a row."""
        self._failures += 1
        wait_s = min(MAX_RETRY_S, RETRY_S * 2.0 ** min(self._failures - 2, 20)) if self._failures > 1 else 0.0
        self._failed_at = time.monotonic()
        self._retry_at = self._failed_at + wait_s
        return wait_s

    def _kill_late(self) -> None:
        for child in self._children:
            if child.told is not None and time.monotonic() - child.told > self._grace_s + KILL_AFTER_S:
                child.process.kill()
