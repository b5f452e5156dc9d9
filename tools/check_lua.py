"""Compile every Lua script, with its includes, in the server that will run it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from redis.exceptions import ResponseError

from headrace.embedded.valkey import EmbeddedValkey
from headrace.queue import scripts as queue
from headrace.snapshot import store as snapshot
from headrace.streams import scripts as streams
from headrace.valkey import lease
from headrace.valkey.connect import connect

SOURCES = {
    f"{package.__name__}: {name}.lua": package.script(name).source
    for package in (queue, snapshot, streams, lease)
    for name in package.SCRIPTS
}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedValkey(Path(folder, "data"), Path(folder, "log"))
        server.start()
        try:
            server.wait_ready(30)
            return compile_all(server.url)
        finally:
            server.stop()


def compile_all(url: str) -> int:
    broken = 0
    with connect(url) as client:
        for name, source in SOURCES.items():
            try:
                client.script_load(source)
            except ResponseError as error:
                print(f"{name}: {error}", file=sys.stderr)
                broken += 1
    print(f"{len(SOURCES)} Lua scripts, {broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
