"""Publish jobs to streams: the stream of each job, and the limits of a stream's length.

An entry is trimmed only when every group of its stream has acknowledged it. Trimming begins at `maxlen`; at
`hard_maxlen` a stream whose workers do not keep up refuses new jobs with StreamFull. An accepted job is one entry;
unlike in a queue, a job that is published twice becomes two entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.model.job import NewJob
from headrace.queue.validate import check_job
from headrace.streams.codec import StreamCodec
from headrace.streams.scripts import publish
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import ScriptCall, run
from headrace.valkey.stream_groups import translate_group_errors


@dataclass(frozen=True)
class BrokerOptions:
    """Settings of producers; the defaults are those of the settings file."""

    stream: str = "jobs"
    routes: Mapping[str, str] = field(default_factory=dict[str, str])  # task → stream; other tasks go to `stream`
    maxlen: int = 10_000
    hard_maxlen: int = 100_000
    max_payload_bytes: int = 2**20
    codec: StreamCodec = field(default_factory=StreamCodec)

    def route(self, job: NewJob) -> str:
        return self.routes.get(job.task, self.stream)

    def publish(self, stream: str, jobs: Sequence[NewJob]) -> ScriptCall[list[str]]:
        for job in jobs:
            check_job(job, self.max_payload_bytes)
        values = map(self.codec.encode, jobs)
        return publish(stream, self.maxlen, self.hard_maxlen, self.codec.field, values)


class Broker:
    """Publisher. Raises StreamFull (nothing was written), NotAStream, MemoryFull, or StreamsUnavailable (it
    is unknown whether it was written)."""

    def __init__(self, client: Valkey, options: BrokerOptions | None = None) -> None:
        self._client = client
        self.options = options or BrokerOptions()

    def publish(self, job: NewJob) -> str:
        """Publish a job to its stream. Return the id of its entry."""
        return self.publish_many(self.options.route(job), [job])[0]

    def publish_many(self, stream: str, jobs: Sequence[NewJob]) -> list[str]:
        """Publish all jobs, or none. Return the ids of their entries."""
        with translate_group_errors(stream, "*"):
            return run(self._client, self.options.publish(stream, jobs))
