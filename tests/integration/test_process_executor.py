"""Child processes for tasks: errors, deaths, time limits, memory, and their end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.model.job import AttemptRecord, LeasedJob
from headrace.model.names import QueueRef
from headrace.queue.tasks import Bury, CannotRunYet, RetryLater, Snooze
from headrace.worker.failures import (
    BuriedInProcess,
    ExecutorClosed,
    RetryChoice,
    TaskFailedInProcess,
    TaskProcessDied,
    TimeLimitExceeded,
    describe_exit,
    describe_failure,
)
from headrace.worker.handlers import load_handler, name_handler
from headrace.worker.processes import ProcessExecutor, check_handler
from tests import process_tasks
from tests.conftest import wait_until

ROOT = Path(__file__).parents[2]
LONG_S = 120.0
MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def _fork_server() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """Stop the fork server after each test: it would stay until this process ends."""
    yield
    forkserver._forkserver._stop()  # pyright: ignore


@asynccontextmanager
async def open_executor(
    size: int = 1, memory_bytes: int | None = None, kill_after_s: float = LONG_S
) -> AsyncGenerator[ProcessExecutor]:
    executor = ProcessExecutor(size, memory_bytes, kill_after_s)
    try:
        yield executor
    finally:
        await executor.close(LONG_S)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


def make_job(payload: object = "") -> LeasedJob:
    ref = QueueRef("acme", "shop", "prod", "emails")
    return LeasedJob(ref, "job-1", "task", str(payload).encode(), 1, 5, "lease", 0, 0)


def read_pids(file: Path) -> list[int]:
    """Return the process ids in a file, without a line that is being written."""
    return [int(line) for line in file.read_text().splitlines(True) if line.endswith("\n")] if file.exists() else []


async def wait_for_pid(file: Path) -> int:
    return await asyncio.to_thread(wait_until, lambda: read_pids(file), "the task has started") and read_pids(file)[-1]


def wait_until_gone(pid: int) -> None:
    wait_until(lambda: not psutil.pid_exists(pid), f"process {pid} has ended")


def test_a_hundred_jobs_reuse_one_child(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_executor() as executor:
            jobs = [executor.run(process_tasks.write_pid, make_job(tmp_path / "pids"), LONG_S) for _ in range(100)]
            await asyncio.gather(*jobs)
            psutil.Process(read_pids(tmp_path / "pids")[0])  # it is idle

    run(main)
    pids = read_pids(tmp_path / "pids")
    assert len(pids) == 100
    assert len(set(pids)) == 1
    assert pids[0] != os.getpid()
    assert not psutil.pid_exists(pids[0])


def test_children_run_at_the_same_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_executor(size=2) as executor:
            hung = asyncio.create_task(executor.run(process_tasks.hang, make_job(tmp_path / "hung"), None))
            pid = await wait_for_pid(tmp_path / "hung")
            await executor.run(process_tasks.write_pid, make_job(tmp_path / "other"), LONG_S)
            assert read_pids(tmp_path / "other") != [pid]
            hung.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hung

    run(main)


def test_an_async_function_runs_in_a_loop_of_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_executor() as executor:
            await executor.run(process_tasks.write_pid_async, make_job(tmp_path / "pids"), LONG_S)

    run(main)
    assert len(read_pids(tmp_path / "pids")) == 1


def test_an_error_arrives_with_its_class_and_traceback() -> None:
    async def main() -> None:
        async with open_executor() as executor:
            with pytest.raises(TaskFailedInProcess, match=r"^ValueError: no customer 7$") as caught:
                await executor.run(process_tasks.fail, make_job(7), LONG_S)
            assert caught.value.class_name == "builtins.ValueError"
            assert 'raise ValueError(f"no customer' in caught.value.traceback_text
            with pytest.raises(TaskFailedInProcess, match="SystemExit: 4"):
                await executor.run(process_tasks.raise_system_exit, make_job(), LONG_S)
            with pytest.raises(TaskFailedInProcess, match=r"UnprintableError: \(the message"):
                await executor.run(process_tasks.fail_unprintably, make_job(), LONG_S)

    run(main)


def test_bury_arrives_as_bury() -> None:
    async def main() -> None:
        async with open_executor() as executor:
            with pytest.raises(Bury, match=r"^the account is closed$") as caught:
                await executor.run(process_tasks.bury, make_job(), LONG_S)
            assert isinstance(caught.value, BuriedInProcess)
            assert 'raise Bury("the account is closed")' in caught.value.traceback_text
            assert 'raise Bury("the account is closed")' in str(caught.value.__cause__)

    run(main)


def test_instructions_arrive_with_their_data() -> None:
    async def main() -> None:
        async with open_executor() as executor:
            with pytest.raises(Snooze, match=r"^not yet$") as snoozed:
                await executor.run(process_tasks.snooze, make_job(), LONG_S)
            assert snoozed.value.after_s == 90
            with pytest.raises(RetryLater, match=r"^busy$") as later:
                await executor.run(process_tasks.retry_later, make_job(), LONG_S)
            assert later.value.after_s == 1.5
            failure = describe_failure(later.value)
            assert (failure.class_name, failure.message) == ("headrace.queue.tasks.RetryLater", "busy")
            assert "process_tasks.py" in failure.traceback_text
            with pytest.raises(CannotRunYet, match=r"^version 3$"):
                await executor.run(process_tasks.cannot_run_yet, make_job(), LONG_S)

    run(main)


def test_a_task_object_returns_its_record() -> None:
    async def main() -> None:
        async with open_executor() as executor:
            record = await executor.run(process_tasks.charge.handle, make_job("paid"), LONG_S)
            assert record == AttemptRecord(b"paid", 60_000)

    run(main)


@pytest.mark.parametrize(
    ("payload", "choice"),
    [("key", RetryChoice(None)), ("value", RetryChoice(1.0)), ("os", RetryChoice(is_default=True))],
)
def test_the_policy_of_a_task_object_decides_in_the_child(payload: str, choice: RetryChoice) -> None:
    """The exception itself exists only there."""

    async def main() -> None:
        async with open_executor() as executor:
            with pytest.raises(TaskFailedInProcess) as caught:
                await executor.run(process_tasks.charge.handle, make_job(payload), LONG_S)
            assert caught.value.choice == choice
            assert "TaskObject" not in describe_failure(caught.value).class_name

    run(main)


def test_a_method_of_a_task_object_is_found_by_its_name() -> None:
    name = name_handler(process_tasks.charge.handle)
    assert str(name) == "tests.process_tasks.charge.handle"
    assert load_handler(name) == process_tasks.charge.handle
    for nameless in (process_tasks.TaskObject("absent").handle, process_tasks.TaskObject("charge").handle):
        with pytest.raises(ValueError, match="its module has"):
            name_handler(nameless)


@pytest.mark.parametrize(
    ("task", "exit_code", "text"),
    [
        (process_tasks.read_null, -signal.SIGSEGV, r"signal 11 \(SIGSEGV\) while it ran .*process_tasks\.read_null"),
        (process_tasks.exit_at_once, 3, "exit code 3"),
    ],
)
def test_a_child_that_dies_fails_one_job(
    tmp_path: Path, task: Callable[[LeasedJob], None], exit_code: int, text: str
) -> None:
    async def main() -> None:
        async with open_executor() as executor:
            await executor.run(process_tasks.write_pid, make_job(tmp_path / "pids"), LONG_S)
            dying = executor.run(task, make_job(), LONG_S)
            waiting = executor.run(process_tasks.write_pid, make_job(tmp_path / "pids"), LONG_S)
            died, other = await asyncio.gather(dying, waiting, return_exceptions=True)
            assert other is None
            with pytest.raises(TaskProcessDied, match=text) as caught:
                raise died if isinstance(died, BaseException) else AssertionError("the job succeeded")
            assert caught.value.exit_code == exit_code

    run(main)
    assert len(set(read_pids(tmp_path / "pids"))) == 2


def test_a_child_killed_while_idle_fails_no_job(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_executor() as executor:
            await executor.run(process_tasks.write_pid, make_job(tmp_path / "pids"), LONG_S)
            (pid,) = read_pids(tmp_path / "pids")
            os.kill(pid, signal.SIGKILL)
            await executor.run(process_tasks.write_pid, make_job(tmp_path / "pids"), LONG_S)
            assert len(set(read_pids(tmp_path / "pids"))) == 2

    run(main)


def test_a_killed_fork_server_is_replaced(tmp_path: Path) -> None:
    """The kernel kills the children of a fork server that is killed; the next job starts another one."""

    async def main() -> None:
        async with open_executor() as executor:
            hung = asyncio.create_task(executor.run(process_tasks.hang, make_job(tmp_path / "hung"), None))
            pid = await wait_for_pid(tmp_path / "hung")
            psutil.Process(pid).parent().kill()  # pyright: ignore[reportOptionalMemberAccess]
            with pytest.raises(TaskProcessDied):
                await hung
            await asyncio.to_thread(wait_until_gone, pid)
            await executor.run(process_tasks.write_pid, make_job(tmp_path / "other"), LONG_S)

    run(main)


def test_a_time_limit_ends_the_child(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_executor() as executor:
            with pytest.raises(TimeLimitExceeded, match=r"limit of 0\.05 s"):
                await executor.run(process_tasks.hang, make_job(tmp_path / "hung"), 0.05)
            assert not any(psutil.pid_exists(pid) for pid in read_pids(tmp_path / "hung"))
            await executor.run(process_tasks.write_pid, make_job(tmp_path / "pids"), LONG_S)

    run(main)


def test_a_task_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_executor(kill_after_s=0.2) as executor:
            task = process_tasks.hang_ignoring_sigterm
            with pytest.raises(TimeLimitExceeded):
                await executor.run(task, make_job(tmp_path / "hung"), 1.0)
            assert not any(psutil.pid_exists(pid) for pid in read_pids(tmp_path / "hung"))
            await executor.run(process_tasks.write_pid, make_job(tmp_path / "pids"), LONG_S)

    run(main)


def test_cancelling_the_caller_ends_the_child_before_the_next_job_starts(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_executor(kill_after_s=0.2) as executor:
            task = process_tasks.hang_ignoring_sigterm
            hung = asyncio.create_task(executor.run(task, make_job(tmp_path / "hung"), None))
            pid = await wait_for_pid(tmp_path / "hung")
            hung.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hung
            assert not psutil.pid_exists(pid)
            await executor.run(process_tasks.write_pid, make_job(tmp_path / "pids"), LONG_S)

    run(main)


def test_a_caller_cancelled_twice_does_not_wait_but_its_slot_does(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_executor(kill_after_s=1.0) as executor:
            task = process_tasks.hang_ignoring_sigterm
            hung = asyncio.create_task(executor.run(task, make_job(tmp_path / "hung"), None))
            pid = await wait_for_pid(tmp_path / "hung")
            hung.cancel()
            await asyncio.sleep(0)  # the first cancellation arrives
            hung.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hung
            await executor.run(process_tasks.write_pid, make_job(tmp_path / "pids"), LONG_S)
            assert not psutil.pid_exists(pid)

    run(main)


def test_a_caller_cancelled_while_it_waits_does_not_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_executor() as executor:
            hung = asyncio.create_task(executor.run(process_tasks.hang, make_job(tmp_path / "hung"), None))
            await wait_for_pid(tmp_path / "hung")
            waiting = asyncio.create_task(executor.run(process_tasks.write_pid, make_job(tmp_path / "pids"), None))
            await asyncio.sleep(0)  # it has been submitted
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert not hung.done()
            hung.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hung

    run(main)
    assert not (tmp_path / "pids").exists()


def test_a_task_that_allocates_too_much_gets_a_memory_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_executor(memory_bytes=256 * MIB) as executor:
            await executor.run(process_tasks.write_pid, make_job(tmp_path / "pids"), LONG_S)
            with pytest.raises(TaskFailedInProcess, match="MemoryError") as caught:
                await executor.run(process_tasks.allocate, make_job(300 * MIB), LONG_S)
            assert "bytearray(int(job.payload))" in caught.value.traceback_text
            await executor.run(process_tasks.allocate, make_job(128 * MIB), LONG_S)
            await executor.run(process_tasks.write_pid, make_job(tmp_path / "pids"), LONG_S)

    run(main)
    assert len(set(read_pids(tmp_path / "pids"))) == 1  # the error did not end the child


def test_a_child_that_keeps_too_much_memory_is_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_executor(memory_bytes=128 * MIB) as executor:
            for _ in range(2):
                await executor.run(process_tasks.keep, make_job(80 * MIB), LONG_S)
                await executor.run(process_tasks.write_pid, make_job(tmp_path / "pids"), LONG_S)

    run(main)
    first, second = read_pids(tmp_path / "pids")
    assert first != second


def test_close_ends_idle_and_busy_children(tmp_path: Path) -> None:
    async def main() -> None:
        executor = ProcessExecutor(2, None)
        task = process_tasks.hang_ignoring_sigterm
        hung = asyncio.create_task(executor.run(task, make_job(tmp_path / "hung"), None))
        busy = await wait_for_pid(tmp_path / "hung")
        await executor.run(process_tasks.write_pid, make_job(tmp_path / "idle"), LONG_S)
        (idle,) = read_pids(tmp_path / "idle")
        second = asyncio.create_task(executor.run(process_tasks.hang, make_job(tmp_path / "second"), None))
        await wait_for_pid(tmp_path / "second")
        waiting = asyncio.create_task(executor.run(process_tasks.write_pid, make_job(tmp_path / "waiting"), None))
        await asyncio.sleep(0)  # it has been submitted
        await executor.close(0.2)
        assert not psutil.pid_exists(busy)
        assert not psutil.pid_exists(idle)
        for call in (hung, second, waiting):
            with pytest.raises(ExecutorClosed):
                await call
        with pytest.raises(ExecutorClosed):
            await executor.run(process_tasks.write_pid, make_job(tmp_path / "waiting"), None)

    run(main)
    assert not (tmp_path / "waiting").exists()


def test_close_kills_a_child_that_was_cancelled_before(tmp_path: Path) -> None:
    async def main() -> None:
        executor = ProcessExecutor(1, None, kill_after_s=1000.0)
        task = process_tasks.hang_ignoring_sigterm
        hung = asyncio.create_task(executor.run(task, make_job(tmp_path / "hung"), None))
        pid = await wait_for_pid(tmp_path / "hung")
        hung.cancel()
        await asyncio.sleep(0)  # the cancellation arrives
        await executor.close(0.2)
        assert not psutil.pid_exists(pid)
        with pytest.raises(asyncio.CancelledError):
            await hung

    run(main)


def test_children_ignore_sigint_and_start_no_threads(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_executor() as executor:
            await executor.run(process_tasks.write_signals, make_job(tmp_path / "signals"), LONG_S)

    run(main)
    assert (tmp_path / "signals").read_text() == "<Handlers.SIG_IGN: 1> <Handlers.SIG_DFL: 0> 1"


def test_check_handler_accepts_functions_of_modules() -> None:
    check_handler(process_tasks.write_pid)
    check_handler(process_tasks.write_pid_async)


def test_check_handler_refuses_what_a_child_cannot_import(monkeypatch: pytest.MonkeyPatch) -> None:
    def nested(job: LeasedJob) -> None: ...

    for handler in (lambda job: None, nested):  # pyright: ignore[reportUnknownLambdaType]
        with pytest.raises(ValueError, match="a lambda or is defined inside another function"):
            check_handler(handler)
    original = process_tasks.fail
    monkeypatch.setattr(process_tasks, "fail", process_tasks.bury)
    with pytest.raises(ValueError, match="another object under this name"):
        check_handler(original)
    monkeypatch.delattr(process_tasks, "fail")
    with pytest.raises(ValueError, match=r"process_tasks\.fail cannot run in a child process: its module has no such"):
        check_handler(original)


def test_describe_exit_names_signals() -> None:
    assert describe_exit(0) == "exit code 0"
    assert describe_exit(-9) == "signal 9 (SIGKILL)"
    assert describe_exit(-40) == "signal 40"


PROGRAM = """
import asyncio, logging, signal, sys
from headrace.model.job import LeasedJob
from headrace.model.names import QueueRef
from headrace.worker.processes import ProcessExecutor, check_handler

signal.signal(signal.SIGINT, signal.default_int_handler)  # a program started in the background ignores it
from tests import process_tasks

job = LeasedJob(QueueRef("acme", "shop", "prod", "emails"), "job-1", "task", sys.argv[2].encode(), 1, 5, "lease", 0, 0)

async def main():
    executor = ProcessExecutor(2, None)
    await executor.run(getattr(process_tasks, sys.argv[1]), job, None)
    {ending}

{setup}
if __name__ == "__main__":
    asyncio.run(main())
"""


def start_program(
    task: str, payload: object, ending: str = "await executor.close(60)", setup: str = ""
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(ending=ending, setup=setup), task, str(payload)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("task", ["hang", "hang_ignoring_sigterm", "hang_in_interpreter"])
def test_a_killed_parent_leaves_no_child(tmp_path: Path, task: str) -> None:
    with start_program(task, tmp_path / "pids") as program:
        (pid,) = wait_until(lambda: read_pids(tmp_path / "pids"), "the task has started")
        fork_server = psutil.Process(pid).ppid()
        program.kill()
    wait_until_gone(pid)
    wait_until_gone(fork_server)


def test_a_program_exits_without_closing_its_executor(tmp_path: Path) -> None:
    """A task that hangs and ignores SIGTERM does not delay the exit of an interrupted program."""
    with start_program("hang_ignoring_sigterm", tmp_path / "pids") as program:
        (pid,) = wait_until(lambda: read_pids(tmp_path / "pids"), "the task has started")
        program.send_signal(signal.SIGINT)
        program.communicate(timeout=60)
    wait_until_gone(pid)


def test_an_idle_child_does_not_delay_the_exit(tmp_path: Path) -> None:
    with start_program("write_pid", tmp_path / "pids", ending="pass") as program:
        program.communicate(timeout=60)
    assert program.returncode == 0
    wait_until_gone(read_pids(tmp_path / "pids")[0])


def test_children_log_to_standard_error_in_the_parents_form() -> None:
    setup = 'logging.basicConfig(level="WARNING", format="%(levelname)s|%(message)s")'
    with start_program("write_log", "", setup=setup) as program:
        _, errors = program.communicate(timeout=LONG_S)
    assert program.returncode == 0, errors
    assert errors == "WARNING|shown job-1\n"


def test_functions_of_a_program_without_a_file_are_refused() -> None:
    program = "from headrace.worker.processes import check_handler\ndef task(job): ...\ncheck_handler(task)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "__main__.task cannot run in a child process: the program was not started from a file" in ended.stderr


MAIN_PROGRAM = """
import asyncio, pathlib, sys
from headrace.model.job import LeasedJob
from headrace.model.names import QueueRef
from headrace.worker.processes import ProcessExecutor, check_handler

def task(job):
    pathlib.Path(job.payload.decode()).write_text("done")

async def main(file):
    job = LeasedJob(QueueRef("acme", "shop", "prod", "emails"), "job-1", "task", file.encode(), 1, 5, "lease", 0, 0)
    check_handler(task)
    executor = ProcessExecutor(1, None)
    await executor.run(task, job, 60.0)
    await executor.close(60)

if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
"""


def test_functions_of_a_script_can_run(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(MAIN_PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "result")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=False)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "result").read_text() == "done"


def test_a_script_without_a_guard_fails_its_jobs_and_runs_nothing_in_children(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(MAIN_PROGRAM.replace('if __name__ == "__main__":', "if True:"))
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "result")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=False)
    assert "Create the executor below" in ended.stderr
    assert "TaskProcessDied: The child process ended with exit code 1 before it started" in ended.stderr
    assert not (tmp_path / "result").exists()


def test_the_event_loop_runs_while_a_child_starts(tmp_path: Path) -> None:
    """The loop is never blocked for as long as the start of a child takes."""

    async def main() -> None:
        async with open_executor() as executor:
            first = asyncio.create_task(executor.run(process_tasks.write_pid, make_job(tmp_path / "pids"), LONG_S))
            turns = 0
            started = time.monotonic()
            while not first.done():
                turns += 1
                await asyncio.sleep(0)
            assert turns > 10, f"{turns} turns in {time.monotonic() - started:.3f} s"

    run(main)
