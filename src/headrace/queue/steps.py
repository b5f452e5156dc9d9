"""An operation as a series of steps, so that the synchronous and the asynchronous client differ only in how they wait.

A generator yields what it needs done (a script call, something that blocks, a pause) and is sent the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.valkey.scripts import Call

T = TypeVar("T")


@dataclass(frozen=True)
class Blocking:
    do: Callable[[], Any]


@dataclass(frozen=True)
class Pause:
    seconds: float


Step = Call[Any] | Blocking | Pause
Steps = Generator[Step, Any, T]


def drive(steps: Steps[T], take: Callable[[Step], Any]) -> T:
    try:
        step = next(steps)
        while True:
            try:
                answer = take(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return end.value


async def drive_async(steps: Steps[T], take: Callable[[Step], Awaitable[Any]]) -> T:
    try:
        step = next(steps)
        while True:
            try:
                answer = await take(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return end.value
