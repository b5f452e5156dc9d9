"""Measuring inside a worker: count finished jobs, burn CPU time, record when a job started.

Tasks of all contenders call these functions, so that their bodies cost the same. The counts are in a file that the
benchmark maps too: counting needs no server and no system call.

Tasks: `count` does nothing else, `count_sync` does the same as a plain function (of a library whose tasks are `async`),
`burn` uses 1 ms of CPU time, `timed` records the time between the enqueue call and its own start.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from pathlib import Path

FOLDER = "BENCH_METER"
"""Environment variable with the folder of the two files."""

URL = "BENCH_URL"
"""Environment variable with the URL of the server."""

COUNTS, STARTS = "counts", "starts"
SLOTS = 1024
SLOT_BYTES = 8
BURN_NS = 1_000_000
STAMP_DIGITS = 20
PAYLOAD_CHARS = 200


class JobCounter:
    """Number of jobs that this process has run, in its own slot of the shared file.

    A slot belongs to one living process, because process ids of one run are close to each other. A process that was
    forked has another slot.
    """

    def __init__(self, folder: Path) -> None:
        with (folder / COUNTS).open("r+b") as file:
            self._counts = memoryview(mmap.mmap(file.fileno(), SLOTS * SLOT_BYTES)).cast("Q")
        self._lock = threading.Lock()
        self._find_slot()
        os.register_at_fork(after_in_child=self._find_slot)

    def _find_slot(self) -> None:
        self._slot = os.getpid() % SLOTS
        self._lock = threading.Lock()

    def add(self) -> None:
        with self._lock:
            self._counts[self._slot] += 1


_folder = Path(os.environ[FOLDER]) if FOLDER in os.environ else None
_counter = None if _folder is None else JobCounter(_folder)


def count() -> None:
    """Count one job."""
    if _counter is not None:
        _counter.add()


def burn() -> None:
    """Use 1 ms of CPU time of the calling thread, then count one job."""
    until = time.thread_time_ns() + BURN_NS
    while time.thread_time_ns() < until:
        pass
    count()


def make_payload() -> str:
    """Return a payload of 200 characters that begins with the present time of the monotonic clock, in ns."""
    return f"{time.monotonic_ns():0{STAMP_DIGITS}}".ljust(PAYLOAD_CHARS, "x")


def record_start(payload: str | bytes) -> None:
    """Append the time since the payload was made, in ns. The monotonic clock is the same in all processes."""
    passed = time.monotonic_ns() - int(payload[:STAMP_DIGITS])
    assert _folder is not None
    starts = os.open(_folder / STARTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(starts, b"%d\n" % passed)
    os.close(starts)
