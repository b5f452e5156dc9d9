"""What a test leaves running is found: see `nothing_left_behind` in tests/conftest.py."""

from __future__ import annotations

import subprocess
import sys
from threading import Event, Thread

from tests.leftovers import find_children, find_threads, wait_for_children, wait_for_threads


def wait(end: Event) -> None:
    end.wait()


def test_a_thread_that_goes_on_is_named_until_it_ends() -> None:
    known, end = find_threads(), Event()
    thread = Thread(target=wait, args=[end], name="goes on")
    thread.start()
    try:
        assert wait_for_threads(known, timeout_s=0.0) == ["goes on"]
    finally:
        end.set()
    assert wait_for_threads(known) == []


def test_a_process_that_goes_on_is_named_until_it_ends() -> None:
    known = find_children()
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()", "headrace"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    try:
        [command] = wait_for_children(known, kept="another folder", timeout_s=0.0)
        assert command.endswith("headrace")
        assert wait_for_children(known, kept=command, timeout_s=0.0) == []
    finally:
        child.stdin.close()
        child.wait()
    assert wait_for_children(known, kept="another folder") == []
