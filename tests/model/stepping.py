"""Operations that can be stopped between any two of their steps: for good (a crash), or to go on later.

A step is a script call, or the begin or commit of a transaction. Each operation walks in a thread of its own, but
only one ever runs: the caller that resumes it waits until it ends or stops.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.cold.store import ColdStore
from headrace.cold.tiers import Tiers
from headrace.model.names import QueueRef
from headrace.postgres.connect import Connection, Pool
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.coalesce import EnqueueCall
from headrace.queue.scripts import ColdCounters, EnqueueResult
from headrace.valkey.scripts import ScriptCall

T = TypeVar("T")

STUCK_S = 300.0


class Crash(BaseException):
    """The process is killed here."""


@dataclass(frozen=True)
class Stop:
    """Where an operation stops: after this many steps, counted from where it resumes. 0: nowhere."""

    after: int = 0
    crash: bool = False
    syncs_late: bool = False  # its counters reach Valkey later, if ever


NOWHERE = Stop()


@dataclass(frozen=True)
class LateSync:
    """Something that is on its way to Valkey still."""

    ref: QueueRef
    numbers: ColdCounters
    gone: Sequence[int]


class Walk:
    """One operation on its way."""

    def __init__(self, name: str, do: Callable[[], Any]) -> None:
        self.name = name
        self.paused = False  # ever
        self.ended = False
        self.answer: Any = None
        self.error: BaseException | None = None
        self.late: list[LateSync] = []
        self._do = do
        self._stop = NOWHERE
        self._left = 0
        self._may_go = threading.Semaphore(0)
        self._has_stopped = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def crashed(self) -> bool:
        return isinstance(self.error, Crash)

    @property
    def syncs_late(self) -> bool:
        return self._stop.syncs_late

    def go(self, stop: Stop = NOWHERE) -> Walk:
        """Until it ends or stops."""
        assert not self.ended
        self._stop, self._left = stop, stop.after
        if self._thread.is_alive():
            self._may_go.release()
        else:
            self._thread.start()
        assert self._has_stopped.acquire(timeout=STUCK_S), f"{self.name} is stuck"
        if self.ended:
            self._thread.join()
        return self

    def step(self) -> None:
        """Called by the operation between its steps."""
        if self._left == 0:
            return
        self._left -= 1
        if self._left:
            return
        if not self._stop.crash:
            self._wait()
        if self._stop.crash and self._left <= 1:  # at once, if it was to happen with the first step from here
            raise Crash

    def _wait(self) -> None:
        self.paused = True
        self._has_stopped.release()
        self._may_go.acquire()

    def _run(self) -> None:
        _current.walk = self
        try:
            self.answer = self._do()
        except BaseException as error:
            self.error = error
        self.ended = True
        self._has_stopped.release()


_current = threading.local()


def current_walk() -> Walk | None:
    return getattr(_current, "walk", None)


def between_steps() -> None:
    if walk := current_walk():
        walk.step()


class SteppedStore(ColdStore):
    @contextmanager
    def transaction(self) -> Generator[Connection]:
        between_steps()
        with super().transaction() as conn:
            yield conn
            between_steps()  # killed here: rolled back
        between_steps()


class SteppedTiers(Tiers):
    """Its pool is the caller's, and outlives it: making connections takes long."""

    def __init__(self, valkey_url: str, pool: Pool, options: QueueOptions, far_ms: int) -> None:
        super().__init__(valkey_url, "", options, far_ms=far_ms)
        self.store = SteppedStore(pool)

    def close(self) -> None:
        self.valkey.close()

    def run(self, call: ScriptCall[T]) -> T:
        between_steps()
        answer = super().run(call)
        between_steps()
        return answer

    def sync_counters(self, ref: QueueRef, counters: ColdCounters, deleted_rows: Sequence[int] = ()) -> None:
        walk = current_walk()
        if walk and walk.syncs_late:
            walk.late.append(LateSync(ref, counters, deleted_rows))
        else:
            super().sync_counters(ref, counters, deleted_rows)


class SteppedClient(SyncClient):
    def _run(self, call: ScriptCall[T]) -> T:
        between_steps()
        answer = super()._run(call)
        between_steps()
        return answer

    def _run_enqueue(self, call: EnqueueCall) -> EnqueueResult:
        between_steps()
        answer = super()._run_enqueue(call)
        between_steps()
        return answer

    def _wait(self, seconds: float) -> None:
        between_steps()
