"""Threads for synchronous tasks: time limits, hung functions, cancellation, exit."""

from __future__ import annotations

import asyncio
import contextvars
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headrace.worker.failures import ExecutorClosed, TaskRaisedExit, TimeLimitExceeded
from headrace.worker.threads import LoopInbox, ThreadCall, ThreadExecutor
from tests.conftest import wait_until

LIMIT_S = 0.05  # of functions that hang
LONG_S = 120.0

setting: contextvars.ContextVar[str] = contextvars.ContextVar("setting", default="unset")


@contextmanager
def open_executor(size: int = 2, max_abandoned: int = 2) -> Generator[ThreadExecutor]:
    executor = ThreadExecutor(size, max_abandoned)
    try:
        yield executor
    finally:
        executor.close()


class Hang:
    """A function that hangs until `release` is set."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.release = threading.Event()

    def __call__(self) -> str:
        self.started.set()
        assert self.release.wait(LONG_S)
        return "released"

    async def wait_started(self) -> None:
        await asyncio.to_thread(self.started.wait, LONG_S)
        assert self.started.is_set()


@pytest.fixture
def hang() -> Iterator[Hang]:
    """Provide a function that hangs until the test ends."""
    function = Hang()
    yield function
    function.release.set()


def test_returns_the_result_and_raises_the_error() -> None:
    async def run() -> None:
        with open_executor() as executor:
            assert await executor.run(lambda: 7, None) == 7
            assert await executor.run(lambda: 8, LONG_S) == 8
            with pytest.raises(ZeroDivisionError):
                await executor.run(lambda: 1 / 0, LONG_S)

    asyncio.run(run())


def test_needs_a_thread() -> None:
    with pytest.raises(ValueError, match="at least one thread, not 0"):
        ThreadExecutor(0, 0)


def test_calls_wait_for_a_free_thread() -> None:
    running: list[int] = []
    most: list[int] = []

    def count() -> None:
        running.append(1)
        most.append(len(running))
        running.pop()

    async def run() -> None:
        with open_executor(size=2) as executor:
            await asyncio.gather(*(executor.run(count, LONG_S) for _ in range(200)))

    asyncio.run(run())
    assert len(most) == 200
    assert max(most) <= 2


def test_a_function_runs_in_a_copy_of_the_callers_context() -> None:
    def change() -> str:
        before = setting.get()
        setting.set("changed in the thread")
        return before

    async def run() -> None:
        with open_executor(size=1) as executor:
            setting.set("caller")
            assert await executor.run(change, None) == "caller"
            assert await executor.run(change, None) == "caller"
            assert setting.get() == "caller"

    asyncio.run(run())


def test_hung_functions_do_not_delay_other_calls(hang: Hang) -> None:
    async def run() -> None:
        with open_executor(size=3, max_abandoned=2) as executor:
            hung = await asyncio.gather(*(executor.run(hang, LIMIT_S) for _ in range(3)), return_exceptions=True)
            assert [type(error) for error in hung] == [TimeLimitExceeded] * 3
            assert isinstance(hung[0], TimeoutError)
            assert executor.abandoned == 3
            assert executor.is_exhausted
            assert await asyncio.gather(*(executor.run(lambda: 1, LONG_S) for _ in range(3))) == [1, 1, 1]

    asyncio.run(run())


def test_a_waiting_call_starts_when_a_thread_is_abandoned(hang: Hang) -> None:
    async def run() -> None:
        with open_executor(size=1) as executor:
            hung = asyncio.create_task(executor.run(hang, 0.5))
            await hang.wait_started()
            assert await executor.run(lambda: "next", LONG_S) == "next"
            with pytest.raises(TimeLimitExceeded, match=r"0\.5 s"):
                await hung
            assert not executor.is_exhausted

    asyncio.run(run())


def test_the_limit_starts_when_the_function_starts(hang: Hang) -> None:
    started: list[bool] = []

    async def run() -> None:
        with open_executor(size=1) as executor:
            busy = asyncio.create_task(executor.run(hang, None))
            await hang.wait_started()
            waiting = asyncio.create_task(executor.run(lambda: started.append(True), LIMIT_S))
            done, _ = await asyncio.wait([waiting], timeout=LIMIT_S * 10)
            assert not done  # it has waited for ten times its limit
            hang.release.set()
            assert await busy == "released"
            await asyncio.wait([waiting])

    asyncio.run(run())
    assert started == [True]


def test_a_call_that_waited_is_limited_too(hang: Hang) -> None:
    async def run() -> None:
        with open_executor(size=1) as executor:
            first = Hang()
            busy = asyncio.create_task(executor.run(first, None))
            await first.wait_started()
            waiting = asyncio.create_task(executor.run(hang, LIMIT_S))
            await asyncio.wait([waiting], timeout=LIMIT_S * 3)
            first.release.set()
            await busy
            with pytest.raises(TimeLimitExceeded):
                await waiting

    asyncio.run(run())


def test_an_abandoned_thread_that_ends_is_no_longer_counted() -> None:
    async def run() -> None:
        with open_executor(size=1, max_abandoned=0) as executor:
            hang = Hang()
            with pytest.raises(TimeLimitExceeded):
                await executor.run(hang, LIMIT_S)
            (thread,) = executor.list_abandoned()
            assert thread.running_s >= LIMIT_S
            assert "release.wait" in thread.stack
            assert executor.is_exhausted
            hang.release.set()
            wait_until(lambda: executor.abandoned == 0, "the thread is no longer listed")
            assert not executor.is_exhausted
            assert executor.list_abandoned() == []
            assert await executor.run(lambda: 1, LONG_S) == 1

    asyncio.run(run())


def test_abandoned_threads_are_listed_by_label(hang: Hang, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        with open_executor() as executor:
            with pytest.raises(TimeLimitExceeded):
                await executor.run(hang, LIMIT_S, label="send_mail")
            assert [thread.label for thread in executor.list_abandoned()] == ["send_mail"]

    asyncio.run(run())
    assert "send_mail has run for" in caplog.text


def test_cancelling_the_caller_abandons_the_thread(hang: Hang) -> None:
    async def run() -> None:
        with open_executor(size=1) as executor:
            caller = asyncio.create_task(executor.run(hang, None))
            await hang.wait_started()
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            assert executor.abandoned == 1
            assert await executor.run(lambda: 1, LONG_S) == 1

    asyncio.run(run())


def test_a_cancelled_caller_that_waits_for_a_thread_leaves_no_trace(hang: Hang) -> None:
    calls: list[str] = []

    async def run() -> None:
        with open_executor(size=1) as executor:
            busy = asyncio.create_task(executor.run(hang, None))
            await hang.wait_started()
            waiting = asyncio.create_task(executor.run(lambda: calls.append("cancelled"), None))
            await asyncio.sleep(0)  # it has been submitted
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            hang.release.set()
            await busy
            await executor.run(lambda: calls.append("next"), LONG_S)
            assert executor.abandoned == 0

    asyncio.run(run())
    assert calls == ["next"]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, StopIteration])
def test_exceptions_that_end_programs_fail_only_the_call(kind: type[BaseException]) -> None:
    def leave() -> None:
        raise kind(5)

    async def run() -> None:
        with open_executor(size=1) as executor:
            with pytest.raises(TaskRaisedExit, match=f"raised {kind.__name__}: 5") as caught:
                await executor.run(leave, LONG_S)
            assert isinstance(caught.value.__cause__, kind)
            assert await executor.run(lambda: 1, LONG_S) == 1

    asyncio.run(run())


def test_an_executor_serves_one_loop_after_another(hang: Hang) -> None:
    with open_executor(size=1) as executor:

        async def abandon() -> None:
            with pytest.raises(TimeLimitExceeded):
                await executor.run(hang, LIMIT_S)

        async def run() -> object:
            return await executor.run(lambda: 1, LONG_S)

        asyncio.run(abandon())
        assert asyncio.run(run()) == 1
        hang.release.set()  # the loop of this call is closed
        wait_until(lambda: executor.abandoned == 0, "the thread has ended")
        assert asyncio.run(run()) == 1


def test_a_function_that_outlives_its_loop_keeps_its_thread_usable() -> None:
    hang = Hang()
    with open_executor(size=1) as executor:

        async def leave() -> None:
            executor.submit(hang)
            await hang.wait_started()

        async def run() -> object:
            return await executor.run(lambda: 1, LONG_S)

        asyncio.run(leave())
        hang.release.set()
        assert asyncio.run(run()) == 1


def test_close_waits_for_no_thread(hang: Hang) -> None:
    async def run() -> None:
        executor = ThreadExecutor(1, 0)
        busy = asyncio.create_task(executor.run(hang, None))
        await hang.wait_started()
        waiting = asyncio.create_task(executor.run(lambda: 1, LONG_S))
        await asyncio.sleep(0)  # it has been submitted
        executor.close()
        with pytest.raises(ExecutorClosed):
            await waiting
        with pytest.raises(ExecutorClosed):
            await executor.run(lambda: 1, None)
        assert not busy.done()
        hang.release.set()
        assert await busy == "released"

    asyncio.run(run())


def test_a_refused_thread_fails_the_call_and_the_next_call_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def run() -> None:
        with open_executor() as executor:
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", refuse)
                with pytest.raises(RuntimeError, match="starts no thread"):
                    await executor.run(lambda: 1, None)
            assert await executor.run(lambda: 1, None) == 1

    asyncio.run(run())


def test_idle_threads_keep_no_job_alive() -> None:
    class Payload:
        def __init__(self, ended: threading.Event) -> None:
            self._ended = ended

        def __call__(self) -> None:
            pass

        def __del__(self) -> None:
            self._ended.set()

    async def run() -> None:
        with open_executor(size=1) as executor:
            ended = threading.Event()
            await executor.run(Payload(ended), LONG_S)
            assert await asyncio.to_thread(ended.wait, LONG_S)

    asyncio.run(run())


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Let the interpreter switch between threads as often as it can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hasty_threads")
def test_calls_that_are_cancelled_at_any_moment_leave_the_pool_intact() -> None:
    size, chance, results = 4, random.Random(7), list[object]()

    async def run_and_cancel(executor: ThreadExecutor) -> None:
        limit_s = chance.choice([None, LONG_S, 1e-6])
        caller = asyncio.create_task(executor.run(lambda: results.append(1), limit_s))
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        if chance.random() < 0.5:
            caller.cancel()
        await asyncio.wait([caller])

    async def run() -> None:
        with open_executor(size) as executor:
            for _ in range(300):
                await asyncio.gather(*(run_and_cancel(executor) for _ in range(size * 3)))
            together = threading.Barrier(size)
            await asyncio.gather(*(executor.run(lambda: together.wait(LONG_S), None) for _ in range(size)))
            wait_until(lambda: executor.abandoned == 0, "no thread is abandoned")

    asyncio.run(run())
    assert results


HUNG_PROGRAM = """
import asyncio, time
from headrace.worker.threads import ThreadExecutor

async def main():
    executor = ThreadExecutor(2, 2)
    try:
        await executor.run(lambda: time.sleep(1000), 0.05)
    except TimeoutError:
        print("timed out", flush=True)
    busy = asyncio.ensure_future(executor.run(lambda: time.sleep(1000), None))
    await executor.run(lambda: None, None)
    executor.close()

asyncio.run(main())
"""


def test_hung_threads_do_not_delay_the_exit_of_the_program() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HUNG_PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "timed out\n"


FORK_PROGRAM = """
import asyncio, os, threading
from headrace.worker.threads import ThreadExecutor

parent = ThreadExecutor(2, 2)

async def run(executor):
    return await executor.run(lambda: os.getpid(), 60.0)

async def is_refused(executor):
    try:
        await executor.run(lambda: None, None)
    except RuntimeError:
        return True
    return False

assert asyncio.run(run(parent)) == os.getpid()
if (pid := os.fork()) == 0:
    child = ThreadExecutor(2, 2)
    is_right = asyncio.run(run(child)) == os.getpid() and asyncio.run(is_refused(parent))
    os._exit(0 if is_right else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert asyncio.run(run(parent)) == os.getpid()
"""


def test_a_forked_process_creates_its_own_executor() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FORK_PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_calls_that_finish_together_share_a_wake_up() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        wake_ups: list[str] = []
        schedule = loop.call_soon_threadsafe

        def count(callback: Callable[..., object], *arguments: object, **options: Any) -> asyncio.Handle:
            wake_ups.append(str(callback))
            return schedule(callback, *arguments, **options)

        loop.call_soon_threadsafe = count
        delivered: list[bool] = []
        inbox = LoopInbox(loop, lambda: delivered.append(True))
        for expected in (1, 2):
            calls = [ThreadCall(lambda: None, "", inbox) for _ in range(5)]
            for call in calls:
                inbox.post(call)
            await asyncio.gather(*(call.future for call in calls))
            assert len(wake_ups) == expected
            assert len(delivered) == expected * 5

    asyncio.run(run())
