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

from headrace.model.job import AttemptRecord, LeasedJob
from headrace.queue.tasks import Bury, CannotRunYet, RetryLater, Snooze, TaskFailure

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


def snooze(job: LeasedJob) -> None:
    raise Snooze(90, "not yet")


def retry_later(job: LeasedJob) -> None:
    raise RetryLater(1.5, "busy")


def cannot_run_yet(job: LeasedJob) -> None:
    raise CannotRunYet("version 3")


class KeyErrorPolicy:
    """Buries after KeyError, fails after OSError, and chooses the delay of the attempt in seconds after other
    errors."""

    def choose_delay_s(self, error: BaseException, attempt: int) -> float | None:
        if isinstance(error, OSError):
            raise error
        return None if isinstance(error, KeyError) else float(attempt)

    def record_failure(self, job: LeasedJob, failure: TaskFailure, is_final: bool) -> AttemptRecord | None:
        return AttemptRecord(f"{failure.class_name} {failure.message} {is_final}".encode(), 60_000)


class TaskObject:
    """A task as an object of its module, with a function's name and a policy."""

    def __init__(self, name: str) -> None:
        self.__module__, self.__qualname__ = __name__, name
        self.policy = KeyErrorPolicy()

    def handle(self, job: LeasedJob) -> object:
        match job.payload:
            case b"key":
                raise KeyError("customer")
            case b"os":
                raise OSError("broken")
            case b"value":
                raise ValueError("no customer")
            case _:
                return AttemptRecord(job.payload, 60_000)


charge = TaskObject("charge")


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
