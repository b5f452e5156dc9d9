"""Heartbeats that do not depend on the event loop, and the measurement of how late that loop is.

A task that blocks the event loop must not cost the leases of its worker's jobs, so a thread for each server extends
them, with a connection of its own. A server that fails or hangs does not delay the others.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Thread, get_ident

from headrace.runtime.backoff import Backoff
from headrace.valkey.connect import Valkey, connect

log = logging.getLogger(__name__)

TIMEOUT_S = 5.0
CLUSTER_RETRIES = 1  # a failed heartbeat is repeated soon
BACKOFF = Backoff(base_s=1.0, longest_s=5.0)  # a fraction of a lease, so that heartbeats resume in time
PROGRESS_EVERY_S = 1.0
MEASURE_EVERY_S = 1.0
BLOCKED_S = 1.0  # from this delay on, the log names the task that blocks the event loop


class Heartbeats:
    """Calls `beat` for each source every `interval_s`, and `send_progress` every PROGRESS_EVERY_S between two beats, in
    a thread per group. The sources of a group are on one server. If a call raises, the beats of its group are repeated
    with backoff; `on_failure` gets the error."""

    def __init__(
        self,
        url: str,
        groups: Sequence[Sequence[int]],
        interval_s: float,
        beat: Callable[[Valkey, int], None],
        send_progress: Callable[[Valkey, int], None],
        on_failure: Callable[[int, Exception], None],
    ) -> None:
        self._url = url
        self._groups = groups
        self._interval_s = interval_s
        self._beat = beat
        self._send_progress = send_progress
        self._on_failure = on_failure

    @contextmanager
    def running(self) -> Generator[None]:
        stop = Event()
        threads = [
            Thread(target=self._beat_forever, args=[sources, stop], name=f"heartbeat-{sources[0]}", daemon=True)
            for sources in self._groups
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()

    def _beat_forever(self, sources: Sequence[int], stop: Event) -> None:
        client: Valkey | None = None
        failures, next_beat = 0, time.monotonic()
        while not stop.is_set():
            is_beat = time.monotonic() >= next_beat
            has_failed = False
            for source in sources:
                try:
                    client = client or connect(self._url, TIMEOUT_S, CLUSTER_RETRIES)
                    (self._beat if is_beat else self._send_progress)(client, source)
                except Exception as error:  # any error: if the thread ended, the leases would too
                    has_failed = True
                    self._on_failure(source, error)
            if has_failed or is_beat:
                failures = failures + 1 if has_failed else 0
                retry_s = BACKOFF.delay_s(failures, random.random()) if failures else self._interval_s
                next_beat = time.monotonic() + min(self._interval_s, retry_s)
            left_s = max(0.0, next_beat - time.monotonic())
            stop.wait(left_s if failures else min(PROGRESS_EVERY_S, left_s))
        if client is not None:
            client.close()


class LoopMonitor:
    """Measures how late the event loop runs what is due, once a second. `lag_s` is the last delay; while the loop is
    blocked, it grows. `describe` returns what runs in an asyncio task, for the log."""

    def __init__(self, loop: asyncio.AbstractEventLoop, describe: Callable[[asyncio.Task[object] | None], str]) -> None:
        self._loop = loop
        self._describe = describe
        self._thread_id = 0
        self._sent_at: float | None = None  # when a callback was sent that has not run
        self._lag_s = 0.0

    @property
    def lag_s(self) -> float:
        sent_at = self._sent_at
        return self._lag_s if sent_at is None else max(self._lag_s, time.monotonic() - sent_at)

    @contextmanager
    def running(self) -> Generator[None]:
        """Measure during the `with` block, which must be entered in the thread of the loop."""
        self._thread_id = get_ident()
        stop = Event()
        Thread(target=self._measure_forever, args=[stop], name="loop-monitor", daemon=True).start()
        try:
            yield
        finally:
            stop.set()

    def _measure_forever(self, stop: Event) -> None:
        while not stop.wait(MEASURE_EVERY_S):
            ran = Event()
            self._sent_at = time.monotonic()
            with suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(ran.set)
            if not ran.wait(BLOCKED_S) and not stop.is_set():
                self._log_blocked()
                while not ran.wait(MEASURE_EVERY_S) and not stop.is_set():
                    pass
            self._lag_s, self._sent_at = time.monotonic() - self._sent_at, None

    def _log_blocked(self) -> None:
        """Log what blocks the loop, once per blockade."""
        frame = sys._current_frames().get(self._thread_id)  # pyright: ignore[reportPrivateUsage]
        place = "" if frame is None else "".join(traceback.format_stack(frame, limit=1)).strip()
        log.warning(
            "the event loop is blocked by %s; other async tasks of this worker wait. Use a plain function, which runs "
            "in a thread, or await. %s",
            self._describe(asyncio.current_task(self._loop)),
            place,
            extra={"action": "loop_blocked"},
        )
