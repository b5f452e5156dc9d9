"""What an app needs from its queue. Imports no driver of a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.model.job import JobInfo, JobState, NewJob
from headrace.model.names import EnvRef, QueueRef


class Transport(Protocol):
    """What an app does with its queue: real servers, or the recorder of a test."""

    def enqueue_many(self, ref: QueueRef, jobs: Sequence[NewJob]) -> list[bool]: ...

    async def aenqueue_many(self, ref: QueueRef, jobs: Sequence[NewJob]) -> list[bool]: ...

    def get(self, env: EnvRef, job_id: str) -> JobInfo | None: ...

    async def aget(self, env: EnvRef, job_id: str) -> JobInfo | None: ...

    def cancel(self, env: EnvRef, job_id: str, *, running: bool) -> JobState | None: ...

    async def acancel(self, env: EnvRef, job_id: str, *, running: bool) -> JobState | None: ...

    def read_attempts(self, env: EnvRef, job_id: str) -> Sequence[bytes]: ...

    async def aread_attempts(self, env: EnvRef, job_id: str) -> Sequence[bytes]: ...

    def check_wait(self, env: EnvRef, job_id: str) -> None:
        """Raise ResultUnknown if the job can never end while its producer waits."""
        ...

    def close(self) -> None: ...

    async def aclose(self) -> None: ...
