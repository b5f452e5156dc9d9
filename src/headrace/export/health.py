"""Health of a destination: consecutive failures, and how far the backoff has grown.

Senders work in parallel, so one outage fails several sends at once. All of them count as failures, but the backoff
grows only if the send began after the last failure was recorded: an earlier one says nothing new about how long to
wait.
"""

from __future__ import annotations

import threading

UNHEALTHY_AFTER = 3


class DestinationHealth:
    def __init__(self) -> None:
        self.failures_in_a_row = 0
        self._lock = threading.Lock()
        self._failed_rounds = 0
        self._failed_at = float("-inf")

    @property
    def healthy(self) -> bool:
        return self.failures_in_a_row < UNHEALTHY_AFTER

    def record_failure(self, began_at: float, now: float) -> int:
        """Record a failure. Return the number of consecutive failed rounds, including this one."""
        with self._lock:
            self.failures_in_a_row += 1
            if began_at >= self._failed_at:
                self._failed_rounds += 1
                self._failed_at = now
            return self._failed_rounds

    def record_success(self) -> bool:
        """Record a success. Return True if the destination was unhealthy before."""
        with self._lock:
            was_unhealthy = self.failures_in_a_row >= UNHEALTHY_AFTER
            self.failures_in_a_row = self._failed_rounds = 0
            return was_unhealthy
