"""How long to wait before trying again.

The pause grows with every failure and is never the same twice: processes that failed together must not return together.
What the other side asks for (`Retry-After`) is a floor, not a hint. Pure; the caller draws the random number.
"""

from __future__ import annotations

from dataclasses import dataclass

JITTER = 0.5  # at most this share of a delay is taken off it
LONGEST_RETRY_AFTER_S = 3600.0  # a destination that says "next week" is asked again within the hour


@dataclass(frozen=True)
class Backoff:
    base_s: float = 5.0
    multiplier: float = 2.0
    longest_s: float = 300.0

    def delay_s(self, failures: int, draw: float, retry_after_s: float | None = None) -> float:
        """Return the pause after this many failures in a row (1 = the first one). `draw` is from [0, 1)."""
        # The exponent is bounded: a float overflows at 2 ** 1024, long after any delay is the longest.
        grown = self.base_s * self.multiplier ** min(max(failures, 1) - 1, 64)
        delay_s = min(grown, self.longest_s) * (1.0 - JITTER * draw)
        return max(delay_s, min(retry_after_s or 0.0, LONGEST_RETRY_AFTER_S))
