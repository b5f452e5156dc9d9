"""A consumer group of a Redis Stream as a source of jobs.

An entry is acknowledged after its task has succeeded, never before. Until then it is pending in the group: heartbeats
reset its idle time while it runs, and if its worker dies, any worker's sweep makes it available again once the idle
time exceeds the lease. A failed entry also stays pending, owned by the consumer `headrace:waiting`, until its retry is
due.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from headrace.errors import UnknownGroup
from headrace.model.entry_id import parse_time_ms
from headrace.model.job import JobLeaseState, LeasedJob
from headrace.model.names import QueueRef
from headrace.queue.scripts import Deferral, LeasedJobs, Records
from headrace.runtime.loop import make_process_name
from headrace.streams.codec import StreamCodec, UndecodableEntry
from headrace.streams.keys import GroupKeys
from headrace.streams.scripts import CONSUMER_PREFIX, FIRST_ID, EntryDeferral, EntryLease, GroupStubs, LeasedEntry
from headrace.valkey.connect import AsyncValkey, Valkey, connect_async
from headrace.valkey.scripts import ScriptCall, run, run_async
from headrace.valkey.stream_groups import create_group, translate_group_errors
from headrace.worker.options import WorkerOptions
from headrace.worker.results import DEFER_OUTCOMES
from headrace.worker.wake import ANSWER_S

T = TypeVar("T")

log = logging.getLogger(__name__)

RECLAIM_BATCH = 100
RECLAIM_CALLS = 100  # per sweep; the next sweep continues where it stopped
GONE_AFTER_LEASES = 10  # a consumer of Headrace that is idle for this many leases is removed


class StreamGroup:
    """A consumer group, as seen by one worker. `ref` is the name of the group in history. `on_due` is called when a
    retry that this worker has learned of is due. Records of attempts are ignored: a stream has no place for them."""

    def __init__(
        self,
        client: AsyncValkey,
        keys: GroupKeys,
        ref: QueueRef,
        codec: StreamCodec,
        options: WorkerOptions,
        on_due: Callable[[], None],
    ) -> None:
        self.name, self.label = f"stream {keys.stream}", keys.stream
        self.last_id = FIRST_ID  # of the stream, when it last had no entry for the group
        self.last_wake_id = FIRST_ID  # of the wakes, when this worker last learned of the next retry
        self._client = client
        self._keys = keys
        self._ref = ref
        self._codec = codec
        self._options = options
        self._on_due = on_due
        self._due_timer: asyncio.TimerHandle | None = None
        self._stubs = GroupStubs(keys, f"{CONSUMER_PREFIX}{make_process_name()}")
        self._cursor = FIRST_ID

    async def dequeue(self, limit: int, excluded: Mapping[str, bool]) -> LeasedJobs:
        found = await self._run(self._stubs.dequeue(limit))
        if found.deleted:
            log.warning(
                "%d entries were deleted while they waited for a retry", found.deleted, extra={"action": "gone"}
            )
        if found.next_due_ms is not None:
            self._expect_due(found.next_due_ms / 1000)
        jobs = LeasedJobs()
        rejected: list[tuple[LeasedJob, str]] = []
        for entry in found.entries:
            job, reason = self._decode(entry)
            if reason:
                rejected.append((job, reason))
            else:
                jobs.append(job)
        jobs.rejected = rejected
        jobs.has_more = len(found.entries) >= limit
        if found.last_id:
            self.last_id = found.last_id
        self.last_wake_id = found.last_wake_id
        return jobs

    def _decode(self, entry: LeasedEntry) -> tuple[LeasedJob, str]:
        """Return the job of an entry, and why it cannot run; empty: it can. An entry that is not a job is a job of no
        task."""
        enqueued_at_ms = parse_time_ms(entry.id) or 0
        lease = f"{entry.id}/{entry.delivery}"
        try:
            new = self._codec.decode(entry.id, entry.fields)
        except UndecodableEntry as error:
            empty = LeasedJob(
                self._ref, entry.id, "", b"", entry.delivery, entry.delivery, lease, enqueued_at_ms, entry.waited_ms
            )
            return empty, f"undecodable: {error}"
        job = LeasedJob(
            self._ref,
            *(new.id, new.task, new.payload),
            attempt=entry.delivery,
            max_attempts=new.max_attempts,
            lease=lease,
            enqueued_at_ms=enqueued_at_ms,
            waited_ms=entry.waited_ms,
        )
        if entry.delivery <= new.max_attempts:
            return job, ""
        return job, (
            f"Delivered {entry.delivery - 1} times without a result, the maximum; the last worker stopped or lost its "
            "connection."
        )

    async def begin(self, job: LeasedJob) -> bool:
        """Return True: the server has counted the delivery."""
        return True

    async def ack(self, done: Sequence[tuple[LeasedJob, int]], records: Records) -> Sequence[bool]:
        return await self._run(self._stubs.ack((_parse_lease(job), run_ms) for job, run_ms in done))

    async def nack(self, failed: Sequence[tuple[LeasedJob, int, str]], records: Records) -> Sequence[bool]:
        answers = await self._run(self._stubs.nack((_parse_lease(job), delay_ms) for job, delay_ms, _ in failed))
        self._expect_due(min(delay_ms for _, delay_ms, _ in failed) / 1000)
        return answers

    async def bury(self, buried: Sequence[tuple[LeasedJob, str]], records: Records) -> Sequence[bool]:
        return await self._run(self._stubs.bury((_parse_lease(job), reason) for job, reason in buried))

    async def defer(self, deferrals: Sequence[Deferral]) -> Sequence[str]:
        codes = await self._run(
            self._stubs.defer(
                EntryDeferral(
                    _parse_lease(each.job), each.min_delay_ms, each.max_delay_ms, each.reason, each.bury_after_ms
                )
                for each in deferrals
            )
        )
        self._expect_due(min(each.min_delay_ms for each in deferrals) / 1000)
        return [DEFER_OUTCOMES[code] for code in codes]

    async def requeue(self, jobs: Sequence[LeasedJob]) -> Sequence[bool]:
        return await self._run(self._stubs.requeue(map(_parse_lease, jobs)))

    def extend(self, client: Valkey, jobs: Sequence[LeasedJob]) -> Sequence[JobLeaseState]:
        try:
            with translate_group_errors(self._keys.stream, self._keys.group):
                held = run(client, self._stubs.extend(map(_parse_lease, jobs)))
        except UnknownGroup:  # a dequeue creates it again, and its entries are delivered again
            held = [False] * len(jobs)
        return [JobLeaseState.HELD if flag else JobLeaseState.LOST for flag in held]

    def send_progress(self, client: Valkey, jobs: Sequence[LeasedJob]) -> None:
        """Do nothing: a stream has no place for the progress of an entry."""

    def note_failure(self) -> None:
        pass

    def _expect_due(self, seconds: float) -> None:
        """Dequeue when a retry is due, unless an earlier one is expected."""
        loop = asyncio.get_running_loop()
        at = loop.time() + max(0.0, seconds)
        if self._due_timer is not None and self._due_timer.when() <= at:
            return
        if self._due_timer is not None:
            self._due_timer.cancel()
        self._due_timer = loop.call_at(at, self._report_due)

    def _report_due(self) -> None:
        self._due_timer = None
        self._on_due()

    async def sweep(self) -> None:
        """Reclaim entries whose worker stopped, and remove idle consumers. Every worker does so."""
        returned = 0
        for _ in range(RECLAIM_CALLS):
            answer = await self._run(self._stubs.reclaim(self._options.lease_ms, self._cursor, RECLAIM_BATCH))
            self._cursor = answer.cursor
            returned += answer.returned
            if answer.deleted:
                log.warning(
                    "%d pending entries were deleted from their stream", answer.deleted, extra={"action": "gone"}
                )
            if self._cursor == FIRST_ID:
                break
        if returned:
            self._on_due()
        await self._run(self._stubs.remove_consumers(self._gone_ms))

    async def leave(self) -> None:
        """Remove this worker from the group, if the group still exists."""
        with suppress(UnknownGroup), translate_group_errors(self._keys.stream, self._keys.group):
            await run_async(self._client, self._stubs.remove_consumers(self._gone_ms, leaving=True))

    def close(self) -> None:
        if self._due_timer is not None:
            self._due_timer.cancel()

    async def create(self) -> None:
        """Create the group, and its stream, if they do not exist."""
        await create_group(self._client, self._keys.stream, self._keys.group)

    @property
    def _gone_ms(self) -> int:
        return self._options.lease_ms * GONE_AFTER_LEASES

    async def _run(self, call: ScriptCall[T]) -> T:
        """Run a script. A group that was deleted, or whose server lost its data, is created again."""
        try:
            with translate_group_errors(self._keys.stream, self._keys.group):
                return await run_async(self._client, call)
        except UnknownGroup as error:
            log.warning("%s Recreating the group.", error, extra={"action": "no_group"})
        await self.create()
        with translate_group_errors(self._keys.stream, self._keys.group):
            return await run_async(self._client, call)


class StreamWait:
    """Waits for new entries of a stream, and for an entry that may be delivered again earlier than the group's others:
    one that a worker returned, failed or deferred, or that was reclaimed. All idle workers are woken, by a new entry
    those of all groups: the server has no other way to wait without taking the entry. A woken worker sets a timer for
    an entry that is not due yet."""

    def __init__(self, url: str, group: StreamGroup, keys: GroupKeys, longest_wait_s: float) -> None:
        self.sources: Sequence[int] = [0]
        self._group = group
        self._keys = keys
        self._longest_wait_s = longest_wait_s
        self._client: AsyncValkey = connect_async(url, longest_wait_s + ANSWER_S)

    async def wait(self) -> int | None:
        after: dict[Any, Any] = {self._keys.stream: self._group.last_id, self._keys.wake: self._group.last_wake_id}
        with translate_group_errors(self._keys.stream, "*"):
            found: Any = await self._client.xread(after, count=1, block=max(1, int(self._longest_wait_s * 1000)))
        return 0 if found else None

    async def pass_on(self, index: int) -> None:
        """Do nothing: the other workers were woken, too."""

    async def close(self) -> None:
        await self._client.aclose()


def _parse_lease(job: LeasedJob) -> EntryLease:
    entry_id, _, delivery = job.lease.rpartition("/")
    return EntryLease(entry_id, int(delivery))
