"""Threads and child processes that a test leaves running. They would work on the servers of the tests that follow."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection
from threading import Thread
from threading import enumerate as list_threads
from typing import Any

import psutil

PACKAGES = ("headrace", "tests")
END_S = 60.0  # for what was asked to end and is about to, on a machine that has much else to do


def find_threads() -> set[Thread]:
    """Return the live threads whose function is part of Headrace or of the tests."""
    return {thread for thread in list_threads() if _find_package(thread) in PACKAGES}


def find_children() -> set[psutil.Process]:
    """Return the live child processes that run Headrace, the tests, or the guard of an embedded server."""
    return {child for child in psutil.Process().children() if _runs_package(child)}


def wait_for_threads(known: Collection[Thread], timeout_s: float = END_S) -> list[str]:
    """Wait until all threads have ended that were started since `known` was read. Return the names of the others."""
    deadline = time.monotonic() + timeout_s
    for thread in find_threads() - set(known):
        thread.join(max(0.0, deadline - time.monotonic()))
    return sorted(thread.name for thread in find_threads() - set(known))


def wait_for_children(known: Collection[psutil.Process], kept: str, timeout_s: float = END_S) -> list[str]:
    """Wait until all children have ended that were started since `known` was read, but for those with `kept` in an
    argument. Return the command lines of the others."""
    started = [child for child in find_children() - set(known) if kept not in _command(child)]
    _, alive = psutil.wait_procs(started, timeout_s)
    return sorted(command for child in alive if (command := _command(child)))


def _find_package(thread: Thread) -> str:
    function: Any = getattr(thread, "_target", None) or type(thread).run
    return str(getattr(function, "__module__", "")).partition(".")[0]


def _runs_package(child: psutil.Process) -> bool:
    program, *arguments = _command(child).split(" ") or [""]
    return program == sys.executable and any(name in argument for argument in arguments for name in PACKAGES)


def _command(child: psutil.Process) -> str:
    """Return the command line of a process; an empty string if it has ended."""
    try:
        return " ".join(child.cmdline())
    except psutil.Error:
        return ""
