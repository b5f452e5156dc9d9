"""Lua scripts as typed calls.

A script is a file; `--@include a, b` in it puts other files of its folder in front of it, `--@flags f` tells the server
how it may be run. A `Call`
is one invocation with keys, arguments and the reader of its answer. It knows nothing of connections,
so the synchronous and the asynchronous client share everything but the line that waits.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import Any, Generic, TypeVar

from redis.exceptions import NoScriptError

from headrace.valkey.connect import AsyncValkey, Valkey, available

T = TypeVar("T")
Arg = str | bytes | int

INCLUDE = re.compile(r"^--@include (.+)$", re.MULTILINE)
FLAGS = re.compile(r"^--@flags (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Script:
    name: str
    source: str
    sha: str


@dataclass(frozen=True)
class Call(Generic[T]):
    script: Script
    keys: Sequence[str]
    args: Sequence[Arg]
    read: Callable[[Any], T]


def load_script(folder: Traversable, name: str, preamble: str = "") -> Script:
    """A script with its includes in front; `preamble` is Lua that was generated from Python."""
    body = (folder / f"{name}.lua").read_text(encoding="utf-8")
    included = [(folder / f"{part}.lua").read_text(encoding="utf-8") for part in _listed(INCLUDE, body)]
    # The server reads flags from the first line only.
    shebang = "".join(f"#!lua flags={flags}" for flags in FLAGS.findall(body))
    source = "\n".join([shebang, preamble, *included, body])
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def _listed(directive: re.Pattern[str], body: str) -> list[str]:
    found = directive.search(body)
    return [part.strip() for part in found.group(1).split(",")] if found else []


def run(client: Valkey, call: Call[T]) -> T:
    """Run a call. A server that has never seen the script, or forgot it, is given it."""
    with available():
        try:
            answer: Any = client.execute_command("EVALSHA", call.script.sha, *_arguments(call))
        except NoScriptError:
            answer = client.execute_command("EVAL", call.script.source, *_arguments(call))
    return call.read(answer)


async def run_async(client: AsyncValkey, call: Call[T]) -> T:
    """`run` for an asynchronous client."""
    with available():
        try:
            answer: Any = await client.execute_command("EVALSHA", call.script.sha, *_arguments(call))
        except NoScriptError:
            answer = await client.execute_command("EVAL", call.script.source, *_arguments(call))
    return call.read(answer)


def _arguments(call: Call[T]) -> Sequence[Arg]:
    return (len(call.keys), *call.keys, *call.args)
