"""A shard of the queue as a source of jobs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from headrace.errors import SettingsNotRestored
from headrace.model.job import JobLeaseState, LeasedJob
from headrace.queue.client import Client
from headrace.queue.scripts import Deferral, LeasedJobs, Records, Stubs
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import ScriptCall, run
from headrace.worker.options import WorkerOptions
from headrace.worker.results import DEFER_OUTCOMES

T = TypeVar("T")

log = logging.getLogger(__name__)

SETTINGS_WAIT_S = 60.0

RestoreSettings = Callable[[int], object]
"""Restores the settings of a shard from PostgreSQL. Blocks."""


class QueueShard:
    """A shard of the queue, as seen by one worker."""

    def __init__(
        self,
        client: Client,
        stubs: Stubs,
        number: int,
        options: WorkerOptions,
        restore_settings: RestoreSettings | None,
    ) -> None:
        self.name, self.label = f"shard {number}", str(number)
        self._client = client
        self._stubs = stubs
        self._number = number
        self._options = options
        self._restore_settings = restore_settings
        self._verifies_server = True  # the next dequeue checks that the server is the same as before
        self._settings_awaited_since: float | None = None  # since when the worker waits for restored settings
        self._to_begin: list[tuple[LeasedJob, asyncio.Future[bool]]] = []
        self._beginning: asyncio.Task[None] | None = None
        self._sent: dict[str, str] = {}  # progress that was sent, by lease; used in the heartbeat thread only

    async def dequeue(self, limit: int, excluded: Mapping[str, bool]) -> LeasedJobs:
        look = "1" if self._verifies_server else "0"
        call = self._stubs.dequeue(
            *(self._number, limit, self._options.lease_ms, self._options.queues), look=look, excluded_tasks=excluded
        )
        try:
            jobs = await self._run(call)
        except SettingsNotRestored as error:
            await self._wait_for_settings(error)
            jobs = await self._run(call)
        self._verifies_server = False
        return jobs

    async def _wait_for_settings(self, error: SettingsNotRestored) -> None:
        """Restore the settings of a shard whose server was replaced or restarted. Without PostgreSQL, wait for another
        process to restore them: raises `error` until then. After SETTINGS_WAIT_S jobs run with the settings in
        Valkey."""
        now = time.monotonic()
        if self._settings_awaited_since is None:
            self._settings_awaited_since = now
        state = await self._run(self._stubs.sync_settings_state(self._number))
        try:
            if self._restore_settings is not None:
                await asyncio.to_thread(self._restore_settings, self._number)
            elif state.postgres_id and state.restored_for != state.life:
                raise error
            else:
                await self._run(self._stubs.sync_settings_state(self._number, state.life))
        except Exception as failure:
            if now < self._settings_awaited_since + SETTINGS_WAIT_S:
                raise
            log.warning(
                "%s: settings are not restored; running jobs with the settings in Valkey: %s",
                self.name,
                failure,
                extra={"action": "settings_not_restored"},
            )
            await self._run(self._stubs.sync_settings_state(self._number, state.life))
        self._settings_awaited_since = None

    async def begin(self, job: LeasedJob) -> bool:
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._to_begin.append((job, answer))
        if self._beginning is None:
            self._beginning = asyncio.create_task(self._begin_all())
        return await answer

    async def _begin_all(self) -> None:
        """Record the start of all waiting last attempts. One call at a time; jobs added meanwhile share the next
        one."""
        while self._to_begin:
            batch, self._to_begin = self._to_begin, []
            try:
                flags = await self._run(self._stubs.begin(self._number, [job for job, _ in batch]))
            except Exception as error:
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
            else:
                for (_, answer), flag in zip(batch, flags, strict=True):
                    if not answer.done():
                        answer.set_result(flag)
        self._beginning = None

    async def ack(self, done: Sequence[tuple[LeasedJob, int]], records: Records) -> Sequence[bool]:
        return await self._run(self._stubs.ack(self._number, done, int(self._options.keep_done_s * 1000), records))

    async def nack(self, failed: Sequence[tuple[LeasedJob, int, str]], records: Records) -> Sequence[bool]:
        return [answer > 0 for answer in await self._run(self._stubs.nack(self._number, failed, records))]

    async def bury(self, buried: Sequence[tuple[LeasedJob, str]], records: Records) -> Sequence[bool]:
        return await self._run(self._stubs.bury(self._number, buried, records))

    async def defer(self, deferrals: Sequence[Deferral]) -> Sequence[str]:
        return [DEFER_OUTCOMES[code] for code in await self._run(self._stubs.defer(self._number, deferrals))]

    async def requeue(self, jobs: Sequence[LeasedJob]) -> Sequence[bool]:
        return await self._run(self._stubs.requeue(self._number, jobs))

    def extend(self, client: Valkey, jobs: Sequence[LeasedJob]) -> Sequence[JobLeaseState]:
        return self._extend(client, jobs, self._find_progress(jobs))

    def send_progress(self, client: Valkey, jobs: Sequence[LeasedJob]) -> None:
        texts = self._find_progress(jobs)
        if unsent := [job for job in jobs if job.lease in texts and texts[job.lease] != self._sent.get(job.lease)]:
            self._extend(client, unsent, texts)

    def _find_progress(self, jobs: Sequence[LeasedJob]) -> dict[str, str]:
        """Return the progress that tasks have reported, by lease."""
        return {job.lease: text for job in jobs if (text := job.progress) is not None}

    def _extend(self, client: Valkey, jobs: Sequence[LeasedJob], texts: dict[str, str]) -> Sequence[JobLeaseState]:
        """Extend leases. `texts` is the progress of all running jobs; what is new of it is sent."""
        unsent = {lease: text for lease, text in texts.items() if self._sent.get(lease) != text}
        states = run(client, self._stubs.extend(self._number, jobs, self._options.lease_ms, unsent))
        self._sent = texts
        return states

    def note_failure(self) -> None:
        self._verifies_server = True

    async def _run(self, call: ScriptCall[T]) -> T:
        return await self._client.run_on_shard(self._number, call)
