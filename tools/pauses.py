"""Pause random processes: SIGSTOP, and SIGCONT a moment later."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

MARK = "TORTURE_RUN"
"""Environment variable inherited by every process of a run."""

PAUSE_S = (0.5, 3.0)
BETWEEN_S = (0.2, 2.0)
AT_ONCE = 2


def find_processes(root: int, mark: str) -> list[psutil.Process]:
    """Return a process, its descendants, and other processes that inherited the mark: servers outlive the process that
    started them. A descendant with another mark is left out: a test stops and continues it itself."""
    try:
        top = psutil.Process(root)
        found = {each.pid: each for each in (top, *top.children(recursive=True)) if read_mark(each.pid) in (mark, None)}
    except psutil.NoSuchProcess:
        found = {}
    for pid in psutil.pids():
        if pid not in found and read_mark(pid) == mark:
            try:
                found[pid] = psutil.Process(pid)
            except psutil.NoSuchProcess:
                pass
    found.pop(os.getpid(), None)
    return list(found.values())


def read_mark(pid: int) -> str | None:
    """Return the mark in a process's environment; None if it has none, has ended, or belongs to another user."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((each[len(MARK) + 1 :].decode() for each in variables if each.startswith(f"{MARK}=".encode())), None)


class Pauses:
    """Pauses random processes from a thread, inside the context `running`."""

    def __init__(self, rng: random.Random, find: Callable[[], Sequence[psutil.Process]]) -> None:
        self.count = 0
        self._rng = rng
        self._find = find
        self._ended = threading.Event()

    @contextmanager
    def running(self) -> Generator[None]:
        thread = threading.Thread(target=self._run, name="pauses")
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._rng.uniform(*BETWEEN_S)):
            self._pause_some()

    def _pause_some(self) -> None:
        """Stop up to `AT_ONCE` running processes, and continue them in any case."""
        # A process that a test has stopped must not be continued here.
        running = [each for each in self._find() if is_running(each)]
        chosen = self._rng.sample(running, min(len(running), self._rng.randint(1, AT_ONCE)))
        stopped: list[psutil.Process] = []
        try:
            stopped += [process for process in chosen if send(process, signal.SIGSTOP)]
            self.count += len(stopped)
            self._ended.wait(self._rng.uniform(*PAUSE_S))
        finally:
            for process in stopped:
                send(process, signal.SIGCONT)


def is_running(process: psutil.Process) -> bool:
    try:
        return process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def send(process: psutil.Process, number: int) -> bool:
    """Send a signal unless the process has ended; psutil refuses a process id that was given to another process."""
    try:
        process.send_signal(number)
    except psutil.Error:
        return False
    return True
