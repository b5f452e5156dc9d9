"""Publishing jobs to streams: which stream a job belongs to, and how many entries it may hold.

An entry is trimmed only when every group of its stream is done with it. `maxlen` is where that begins; at `hard_maxlen`
a stream whose workers do not keep up refuses new jobs, and says so. An accepted job is one entry; unlike a queue's, the
same job published twice is two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.model.job import NewJob
from headrace.queue.validate import check_job
from headrace.streams.jobs import Codec
from headrace.streams.scripts import publish
from headrace.valkey.connect import AsyncValkey, Valkey
from headrace.valkey.scripts import Call, run, run_async
from headrace.valkey.stream_groups import of_group


@dataclass(frozen=True)
class BrokerOptions:
    """The settings of producers; the defaults are those of the settings file."""

    stream: str = "jobs"
    routes: Mapping[str, str] = field(default_factory=dict[str, str])  # task → its stream, where it has one of its own
    maxlen: int = 10_000
    hard_maxlen: int = 100_000
    max_payload_bytes: int = 2**20
    codec: Codec = field(default_factory=Codec)

    def stream_of(self, job: NewJob) -> str:
        return self.routes.get(job.task, self.stream)

    def publish(self, stream: str, jobs: Sequence[NewJob]) -> Call[list[str]]:
        for job in jobs:
            check_job(job, self.max_payload_bytes)
        values = map(self.codec.write, jobs)
        return publish(stream, self.maxlen, self.hard_maxlen, self.codec.field, values)


class Broker:
    """For synchronous programs. Raises StreamFull (nothing was written), NotAStream, MemoryFull, QueueUnavailable
    (whether it was written is unknown)."""

    def __init__(self, client: Valkey, options: BrokerOptions | None = None) -> None:
        self._client = client
        self.options = options or BrokerOptions()

    def publish(self, job: NewJob) -> str:
        """The id of its entry."""
        return self.publish_many(self.options.stream_of(job), [job])[0]

    def publish_many(self, stream: str, jobs: Sequence[NewJob]) -> list[str]:
        """All of them, or none."""
        with of_group(stream, "*"):
            return run(self._client, self.options.publish(stream, jobs))


class AsyncBroker:
    """The same for asyncio."""

    def __init__(self, client: AsyncValkey, options: BrokerOptions | None = None) -> None:
        self._client = client
        self.options = options or BrokerOptions()

    async def publish(self, job: NewJob) -> str:
        return (await self.publish_many(self.options.stream_of(job), [job]))[0]

    async def publish_many(self, stream: str, jobs: Sequence[NewJob]) -> list[str]:
        with of_group(stream, "*"):
            return await run_async(self._client, self.options.publish(stream, jobs))
