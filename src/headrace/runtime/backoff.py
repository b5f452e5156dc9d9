"""Backoff: how long to wait before a retry.

The delay grows with every failure and has jitter, so that processes that failed together do not retry together. A delay
requested by the other side (`Retry-After`) is a lower bound. Pure; the caller draws the random number.
"""

from __future__ import annotations

from dataclasses import dataclass

JITTER = 0.5  # largest share of a delay that jitter removes
LONGEST_RETRY_AFTER_S = 3600.0  # cap for Retry-After: a destination that says "next week" is retried within the hour


@dataclass(frozen=True)
class Backoff:
    base_s: float = 5.0
    multiplier: float = 2.0
    longest_s: float = 300.0

    def full_delay_s(self, failures: int) -> float:
        """Return the delay without jitter, in seconds, after `failures` consecutive failures (1 = first)."""
        # The exponent is bounded: a float overflows at 2 ** 1024, long after any delay has reached the maximum.
        return min(self.base_s * self.multiplier ** min(max(failures, 1) - 1, 64), self.longest_s)

    def delay_s(self, failures: int, draw: float, retry_after_s: float | None = None) -> float:
        """Return the delay with jitter, in seconds. `draw` in [0, 1) sets the jitter; `retry_after_s`, capped at
        LONGEST_RETRY_AFTER_S, is a lower bound."""
        delay_s = self.full_delay_s(failures) * (1.0 - JITTER * draw)
        return max(delay_s, min(retry_after_s or 0.0, LONGEST_RETRY_AFTER_S))
