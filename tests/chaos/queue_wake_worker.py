"""A worker that stops itself (SIGSTOP) between its wake and its dequeue: python -m tests.chaos.queue_wake_worker FILE

It creates FILE when the reply to its BZPOPMIN with a wake key was read. Nothing that it would send then is sent.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from headrace.cli.main import main
from headrace.queue import keys
from headrace.valkey.async_script_runner import AsyncScriptRunner
from headrace.valkey.scripts import Arg
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
    """Look at every reply to a command that is not a script."""
    execute = AsyncScriptRunner.execute

    async def execute_and_look(self: AsyncScriptRunner, *command: Arg) -> Any:
        reply: Any = await execute(self, *command)
        stop_if_woken(reply, file)
        return reply

    AsyncScriptRunner.execute = execute_and_look


if __name__ == "__main__":
    watch_replies(Path(sys.argv[1]))
    sys.argv = list(WORKER)
    main()
