"""One process per directory: `spool.lock` is locked as long as the spool is open, and goes free however it ends."""

from __future__ import annotations

import os
import time
from pathlib import Path

from headrace.errors import SpoolBusy
from headrace.spool.files import Files, read_all

LOCK = "spool.lock"
TRIES, PAUSE_S = 5, 0.05  # somebody who only looks holds the lock for a moment


def take_lock(files: Files, folder: Path) -> int:
    """The handle to close when done. Raises SpoolBusy."""
    for left in reversed(range(TRIES)):
        try:
            handle = files.lock(folder / LOCK)
        except BlockingIOError:
            if not left:
                break
            time.sleep(PAUSE_S)
        else:
            _tell_holder(files, handle)
            return handle
    raise SpoolBusy(
        f"Process {holder(files, folder) or 'unknown'} has the spool {folder} open. Nothing was touched; stop that"
        " process, or use another directory."
    )


def _tell_holder(files: Files, handle: int) -> None:
    try:
        files.truncate(handle, 0)
        files.write(handle, f"{os.getpid()}\n".encode())
    except OSError:
        pass  # the lock is held all the same; only its message will say less


def holder(files: Files, folder: Path) -> str:
    """The process id of whoever has it, or had it last."""
    return read_all(files, folder / LOCK).decode("ascii", "replace").strip()


def is_locked(files: Files, folder: Path) -> bool:
    if LOCK not in files.names(folder):
        return False
    try:
        files.close(files.lock(folder / LOCK))
    except OSError:
        return True
    return False
