"""A worker that stops itself (SIGSTOP) between its wake and its dequeue: python -m tests.chaos.queue_wake_worker FILE

It creates FILE when the reply to its BZPOPMIN with a wake key was read. Nothing that it would send then is sent.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import redis.asyncio.connection
import redis.connection

from headrace.cli.main import main
from headrace.queue import keys
from tests.chaos.queue_processes import WORKER

SHARDS = 2
WAKE_KEYS = {keys.wake(shard).encode() for shard in range(SHARDS)}


def stop_if_woken(reply: Any, file: Path) -> None:
    match reply:
        case [bytes() as key, _, _] if key in WAKE_KEYS:
            file.touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        case _:
            pass


def watch_replies(file: Path) -> None:
    """Look at every reply that redis-py reads, of blocking and of asynchronous connections."""
    read_async = redis.asyncio.connection.AbstractConnection.read_response
    read_blocking = redis.connection.Connection.read_response

    async def read_response_async(*args: Any, **options: Any) -> Any:
        reply: Any = await read_async(*args, **options)
        stop_if_woken(reply, file)
        return reply

    def read_response(*args: Any, **options: Any) -> Any:
        reply: Any = read_blocking(*args, **options)
        stop_if_woken(reply, file)
        return reply

    redis.asyncio.connection.AbstractConnection.read_response = read_response_async
    redis.connection.Connection.read_response = read_response


if __name__ == "__main__":
    watch_replies(Path(sys.argv[1]))
    sys.argv = list(WORKER)
    main()
