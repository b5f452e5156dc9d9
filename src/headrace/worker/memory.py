"""Memory limit of a child process, on Linux.

Before a task starts, the limit of the address space (RLIMIT_AS) is set to the present address space plus the allowance,
and lifted when the task ends. The task may therefore allocate as much as the allowance, regardless of what the
interpreter, imported modules and earlier tasks occupy; beyond it, allocations fail with MemoryError. RLIMIT_AS is the
only such limit that does not need a cgroup. It counts reserved address space, not only used memory: each new thread
counts about 72 MiB (its stack and its malloc arena).

Memory that tasks leave allocated is limited after each task: a process whose resident memory exceeds that of its
imports by more than the allowance is replaced.
"""

from __future__ import annotations

import resource
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

STATM = Path("/proc/self/statm")
PAGE_BYTES = resource.getpagesize()


def is_memory_measured() -> bool:
    """Return whether this system reports the memory of a process; without it, no limit is applied."""
    return STATM.exists()


class MemoryLimit:
    """Allowance of memory for the tasks of this process, in bytes; None: no limit."""

    def __init__(self, allowance: int | None) -> None:
        self._allowance = allowance if is_memory_measured() else None
        self._imported = 0 if self._allowance is None else _read_resident()

    @contextmanager
    def exclude_imports(self) -> Generator[None]:
        """Import modules: their resident memory does not count against the allowance."""
        if self._allowance is None:
            yield
            return
        before = _read_resident()
        try:
            yield
        finally:
            self._imported += max(0, _read_resident() - before)

    @contextmanager
    def limit_task(self) -> Generator[None]:
        """Run a task with the limit."""
        if self._allowance is None:
            yield
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        allowed = _read_address_space() + self._allowance
        most = min(allowed, *(allowed if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard)))
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

    def is_exceeded(self) -> bool:
        """Return whether tasks have left more memory allocated than the allowance."""
        return self._allowance is not None and _read_resident() > self._imported + self._allowance


def _read_address_space() -> int:
    return int(STATM.read_text("ascii").split()[0]) * PAGE_BYTES


def _read_resident() -> int:
    return int(STATM.read_text("ascii").split()[1]) * PAGE_BYTES
