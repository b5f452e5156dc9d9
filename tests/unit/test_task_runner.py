"""How errors of tasks become text."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from datetime import datetime

import pytest

from headrace import LeasedJob, QueueRef
from headrace.app.duration import count_ms_until
from headrace.queue.tasks import TaskRegistry
from headrace.worker.task_runner import MAX_ERROR_CHARS, TaskRunner, format_short_traceback

REF = QueueRef(org="acme", project="shop", env="prod", queue="mail")


def raise_and_format(text: str) -> str:
    try:
        raise ValueError(text)
    except ValueError as error:
        return format_short_traceback(error)


def test_the_end_of_the_traceback_is_kept() -> None:
    text = raise_and_format("x" * MAX_ERROR_CHARS + "end")
    assert len(text) == MAX_ERROR_CHARS
    assert text.endswith("end\n")


def test_half_a_character_is_escaped() -> None:
    assert raise_and_format("\ud800").endswith("\\ud800\n")


def test_an_error_whose_traceback_cannot_be_formatted_keeps_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython 3.11 fails with SystemError if two threads format a traceback at the same time."""

    def fail(*_: object) -> list[str]:
        raise SystemError("AST constructor recursion depth mismatch")

    monkeypatch.setattr(traceback, "format_exception", fail)
    assert raise_and_format("no such customer") == "ValueError: no such customer\n"


async def run_failing(function: Callable[[LeasedJob], object]) -> Exception:
    """Run a function as the task of a job, and return its error with its traceback."""
    tasks = TaskRegistry()
    tasks.task("failing")(function)
    task = tasks.get("failing")
    assert task is not None
    runner = TaskRunner(tasks, 1, 1, None)
    try:
        await runner.run(task, LeasedJob(REF, "1", "failing", b"", 1, 5, "lease", 0, 0))
    except Exception as error:
        assert error.__traceback__ is not None  # noqa: PT017
        return error.with_traceback(error.__traceback__.tb_next)  # without the call in this function
    finally:
        await runner.close()
    raise AssertionError


async def fail_async(job: LeasedJob) -> None:
    raise LookupError("no such customer")


def fail_in_thread(job: LeasedJob) -> None:
    raise LookupError("no such customer")


@pytest.mark.parametrize("function", [fail_async, fail_in_thread])
def test_a_traceback_starts_in_the_function_of_the_task(function: Callable[[LeasedJob], object]) -> None:
    text = format_short_traceback(asyncio.run(run_failing(function)))
    first = text.splitlines()[1]
    assert f", in {function.__name__}" in first
    assert text.endswith("LookupError: no such customer\n")


def test_an_error_of_headrace_itself_keeps_its_traceback() -> None:
    with pytest.raises(ValueError, match="time zone") as caught:
        count_ms_until(datetime(2030, 1, 1))
    own = caught.value.with_traceback(caught.tb.tb_next)
    assert ", in count_ms_until" in format_short_traceback(own)
