"""How idle workers wait for jobs: blocked on the wake keys of their shards (lua/wake.lua), not by polling.

A worker that pops a wake key must dequeue from that shard, because no other worker was notified. If it cannot, it sets
the key again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.queue import keys
from headrace.queue.client import Client
from headrace.valkey.async_script_runner import AsyncScriptRunner
from headrace.valkey.connect import AsyncValkey, connect_async, is_cluster, translate_errors

ANSWER_S = 5.0  # how long after the end of a wait the server may take to answer


class WakeKeys:
    """The wake keys of shards on one server, waited for with one connection. `queues` are the names that the worker
    serves; empty: all."""

    def __init__(self, client: Client, shards: Sequence[int], queues: Sequence[str], longest_wait_s: float) -> None:
        self.sources = shards
        self._keys = {
            key: shard
            for shard in shards
            for key in ([keys.wake_by_name(shard, queue) for queue in queues] or [keys.wake(shard)])
        }
        self._longest_wait_s = longest_wait_s
        self._client = client
        self._blocking_client: AsyncValkey = connect_async(client.url, longest_wait_s + ANSWER_S)
        self._runner = AsyncScriptRunner(self._blocking_client)

    async def wait(self) -> int | None:
        """Wait until a shard may have jobs, pop its wake key and return its number. Return None if none had within the
        longest wait."""
        self._rotate()
        answer: Any = await self._runner.execute("BZPOPMIN", *self._keys, str(self._longest_wait_s))
        return None if answer is None else self._keys[answer[0].decode()]

    def _rotate(self) -> None:
        """Move the first key to the end: the server pops the first that is set, and none may always be the first."""
        first = next(iter(self._keys))
        self._keys[first] = self._keys.pop(first)

    async def pass_on(self, index: int) -> None:
        """Set the wake keys of a shard, for another worker. A worker that is woken without need dequeues nothing."""
        client = self._client.get_shard_client(index)
        with translate_errors():
            for key, shard in self._keys.items():
                if shard == index:
                    await client.zadd(key, {"0": 0})

    async def close(self) -> None:
        await self._runner.close()
        await self._blocking_client.aclose()


def group_shards(client: AsyncValkey, count: int) -> list[list[int]]:
    """Return the shards that one connection can wait for together: all, or on a cluster each alone."""
    shards = list(range(count))
    return [[shard] for shard in shards] if is_cluster(client) else [shards]
