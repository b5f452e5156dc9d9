"""An operation as a series of steps, so that the synchronous and the asynchronous client differ only in how they wait.

A generator yields a step (a script call, a blocking function, a pause) and is sent its result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.valkey.scripts import ScriptCall

T = TypeVar("T")


@dataclass(frozen=True)
class Blocking:
    do: Callable[[], Any]


@dataclass(frozen=True)
class Pause:
    seconds: float


Step = ScriptCall[Any] | Blocking | Pause
Steps = Generator[Step, Any, T]


def drive(steps: Steps[T], perform: Callable[[Step], Any]) -> T:
    """Perform all steps and return the result of the operation. Errors of a step are raised in the generator."""
    try:
        step = next(steps)
        while True:
            try:
                answer = perform(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return end.value


async def drive_async(steps: Steps[T], perform: Callable[[Step], Awaitable[Any]]) -> T:
    """Perform all steps as `drive` does, with an asynchronous `perform`."""
    try:
        step = next(steps)
        while True:
            try:
                answer = await perform(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return end.value
