"""Task functions for child processes. Payloads name files or carry numbers."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

from headrace.model.job import LeasedJob
from headrace.queue.tasks import Bury

LONG_S = 1000.0
kept: list[bytes] = []


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def write_pid(job: LeasedJob) -> None:
    """Append the process id to the file that the payload names."""
    with Path(job.payload.decode()).open("a") as file:
        file.write(f"{os.getpid()}\n")


async def write_pid_async(job: LeasedJob) -> None:
    await asyncio.sleep(0)
    write_pid(job)


def hang(job: LeasedJob) -> None:
    """Write the process id, then sleep."""
    write_pid(job)
    time.sleep(LONG_S)


def hang_ignoring_sigterm(job: LeasedJob) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang(job)


def hang_in_interpreter(job: LeasedJob) -> None:
    """Write the process id, then sleep without releasing the interpreter's lock, so that no other thread runs."""
    write_pid(job)
    ctypes.PyDLL(None).sleep(int(LONG_S))


def read_null(job: LeasedJob) -> None:
    ctypes.string_at(0)


def exit_at_once(job: LeasedJob) -> None:
    os._exit(3)


def raise_system_exit(job: LeasedJob) -> None:
    sys.exit(4)


def fail(job: LeasedJob) -> None:
    raise ValueError(f"no customer {job.payload.decode()}")


def fail_unprintably(job: LeasedJob) -> None:
    raise UnprintableError


def bury(job: LeasedJob) -> None:
    raise Bury("the account is closed")


def allocate(job: LeasedJob) -> None:
    """Allocate the number of bytes in the payload, and free them."""
    bytearray(int(job.payload))


def keep(job: LeasedJob) -> None:
    """Allocate the number of bytes in the payload, and never free them."""
    kept.append(b"x" * int(job.payload))


def write_log(job: LeasedJob) -> None:
    logging.getLogger("tests.tasks").info("hidden %s", job.id)
    logging.getLogger("tests.tasks").warning("shown %s", job.id)


def write_signals(job: LeasedJob) -> None:
    """Write how this process handles SIGINT and SIGTERM to the file that the payload names."""
    Path(job.payload.decode()).write_text(
        f"{signal.getsignal(signal.SIGINT)!r} {signal.getsignal(signal.SIGTERM)!r} {threading.active_count()}"
    )
