"""When a worker ends so that its process is restarted: after a number of jobs, or when it uses too much memory."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

CHECK_S = 1.0  # memory is read at most this often, after a job


class Recycling:
    """Counts jobs and reads the memory of this process. `reason` is why the worker should end; empty: it need not."""

    def __init__(self, max_jobs: int | None, max_memory: int | None) -> None:
        self._max_jobs = max_jobs
        self._max_memory = max_memory
        self._jobs = 0
        self._check_at = 0.0
        self.reason = ""

    def record_job(self) -> None:
        """Count a job that ended."""
        self._jobs += 1
        if self._max_jobs is not None and self._jobs >= self._max_jobs:
            self.reason = f"it has run {self._jobs} jobs, the maximum"
        elif self._max_memory is not None and time.monotonic() >= self._check_at:
            self._check_at = time.monotonic() + CHECK_S
            if (used := read_memory()) > self._max_memory:
                self.reason = f"it uses {used / 2**20:.0f} MiB of memory, more than {self._max_memory / 2**20:.0f}"


def read_memory() -> int:
    """Return the resident memory of this process in bytes; where the system does not report it, the highest so far."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return highest if sys.platform == "darwin" else highest * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")
