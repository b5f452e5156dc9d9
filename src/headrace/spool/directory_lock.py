"""Lock of a spool directory: the file `spool.lock` is locked while a process has the spool open. The operating system
releases the lock when the process ends, even if it is killed."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from headrace.errors import SpoolBusy
from headrace.spool.files import Files, read_all

LOCK = "spool.lock"
TRIES, PAUSE_S = 5, 0.05  # an inspecting process holds the lock only briefly


def take_lock(files: Files, folder: Path) -> int:
    """Lock the directory; return the handle to close when done. Raises SpoolBusy."""
    for left in reversed(range(TRIES)):
        try:
            handle = files.lock(folder / LOCK)
        except BlockingIOError:
            if not left:
                break
            time.sleep(PAUSE_S)
        else:
            with suppress(OSError):  # the lock is held anyway; only the message of SpoolBusy says less
                files.truncate(handle, 0)
                files.write(handle, f"{os.getpid()}\n".encode())
            return handle
    raise SpoolBusy(
        f"Process {read_holder(files, folder) or 'unknown'} has the spool {folder} open. Nothing was changed; stop that"
        " process, or use another directory."
    )


def read_holder(files: Files, folder: Path) -> str:
    """Return the id of the process that holds the lock, or held it last; empty if unknown."""
    return read_all(files, folder / LOCK).decode("ascii", "replace").strip()


def is_locked(files: Files, folder: Path) -> bool:
    if LOCK not in files.names(folder):
        return False
    try:
        files.close(files.lock(folder / LOCK))
    except OSError:
        return True
    return False
