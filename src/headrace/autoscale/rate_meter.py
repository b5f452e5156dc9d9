"""Arrival rate and service time from successive samples of counters that only grow. Pure.

Every job that entered a queue is either waiting or has left it, so `depth + departures` grows by the arrivals of any
kind (new, retried, due, refilled, redriven).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class CounterSample:
    at_ms: int
    epoch: int  # changes when the counters restart
    entered: int  # jobs that ever became ready
    ended: int  # attempts that ever ended
    running: int


@dataclass(frozen=True)
class SourceRates:
    """Arrival rate and service time of a source; None if not known yet."""

    arrivals_per_s: float | None = None
    service_s: float | None = None


class RateMeter:
    """Measures the rates of one source over about the last `window_s` seconds."""

    def __init__(self, window_s: float) -> None:
        self._window_ms = int(window_s * 1000)
        self._samples: deque[CounterSample] = deque()
        self._service_s: float | None = None

    def add(self, reading: CounterSample) -> SourceRates:
        if self._samples and self._is_discontinuous(reading):
            self._samples.clear()
        self._samples.append(reading)
        while len(self._samples) > 2 and self._samples[1].at_ms <= reading.at_ms - self._window_ms:
            self._samples.popleft()
        span_s = (reading.at_ms - self._samples[0].at_ms) / 1000
        if span_s <= 0:
            return SourceRates()
        arrived = max(0, reading.entered - self._samples[0].entered)
        return SourceRates(arrived / span_s, self._estimate_service_s(span_s))

    def _is_discontinuous(self, reading: CounterSample) -> bool:
        """Return True if the sample cannot be compared with the previous one: the counters restarted, or too much time
        has passed."""
        last = self._samples[-1]
        is_continued = reading.epoch == last.epoch and reading.ended >= last.ended
        # Twice the window, because samples may be a window apart and a little late.
        return not is_continued or not 0 <= reading.at_ms - last.at_ms <= 2 * self._window_ms

    def _estimate_service_s(self, span_s: float) -> float | None:
        """Estimate service time by Little's law: mean running jobs × span / jobs ended.

        Jobs that hold slots without ending count too.
        """
        ended = self._samples[-1].ended - self._samples[0].ended
        # Time-weighted mean of the running jobs.
        pairs = pairwise(self._samples)
        held = sum((before.running + after.running) / 2 * (after.at_ms - before.at_ms) for before, after in pairs)
        running = held / (self._samples[-1].at_ms - self._samples[0].at_ms)
        if ended:
            self._service_s = running * span_s / ended
        elif running:
            self._service_s = max(self._service_s or 0.0, span_s)
        return self._service_s
