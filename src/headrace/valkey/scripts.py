"""Lua scripts as typed calls.

A script is a file. `--@include a, b` in it puts other files of its folder in front of it; an include may include
others, and each file is sent once. `--@first f` puts a file, with what it uses, in front of all these: it handles
common calls and returns before the functions of the other files are created. `--@flags f` are flags for the server.

A `ScriptCall` is one invocation: keys, arguments and a parser of the reply. It is independent of connections, so the
synchronous and the asynchronous client differ only in how they wait for the reply.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources.abc import Traversable
from typing import Any, Generic, TypeVar

from redis.exceptions import NoScriptError

from headrace.valkey.connect import AsyncValkey, Valkey, is_cluster, translate_errors
from headrace.valkey.lua_source import delay_definitions, drop_unused_definitions

T = TypeVar("T")
Arg = str | bytes | int

INCLUDE = re.compile(r"^--@include (.+)$", re.MULTILINE)
FIRST = re.compile(r"^--@first (.+)$", re.MULTILINE)
FLAGS = re.compile(r"^--@flags (.+)$", re.MULTILINE)

REFUSE_MOVING_SLOT = """
-- While a slot moves between nodes, a key that is absent on this node may be on the other one. A script finds most of
-- its keys itself, so it would read an existing key as absent, or fail after some of its writes. The second key never
-- exists: this command fails on both nodes for as long as the slot moves, and the script ends before it has written.
do
  local answer = redis.pcall('EXISTS', KEYS[1], string.match(KEYS[1], '^[^{]*{[^}]*}') .. ':absent')
  if type(answer) == 'table' and answer.err then
    return redis.error_reply('SLOTMOVING the slot of this shard is being moved to another node')
  end
end
"""

PROGRESS = "local progress = { queues = {} }\nlocal succeeded, failure = pcall(function()"
FAILURE = "end)\nif succeeded then return failure end"


@dataclass(frozen=True)
class Script:
    name: str
    source: str
    cluster_source: str  # for a cluster: refuses to run while its slot is being moved

    @cached_property
    def sha(self) -> str:
        return _compute_sha(self.source)

    @cached_property
    def cluster_sha(self) -> str:
        return _compute_sha(self.cluster_source)

    def select_source(self, client: Valkey | AsyncValkey) -> tuple[str, str]:
        """Return the source to run on this client's servers, and its SHA1."""
        if is_cluster(client):
            return self.cluster_source, self.cluster_sha
        return self.source, self.sha


@dataclass(slots=True)
class ScriptCall(Generic[T]):
    script: Script
    keys: Sequence[str]
    args: Sequence[Arg]
    parse: Callable[[Any], T]


def flatten_args(rows: Iterable[Iterable[Arg]]) -> list[Arg]:
    return [value for row in rows for value in row]


def parse_flags(answer: list[int]) -> list[bool]:
    return [flag == 1 for flag in answer]


def load_script(
    folder: Traversable, name: str, preamble: str = "", *, finds_keys: bool = False, on_failure: str = ""
) -> Script:
    """Return a script with its includes in front; `preamble` is Lua that is generated from Python.

    A script with `finds_keys` uses keys that are not in KEYS; all of them must have the hash tag of its first key. If a
    script that includes `queues` fails, the file `on_failure` runs at its end; both share the table `progress`."""
    included = resolve_includes(folder, name)
    # The server reads flags from the first line only.
    shebang = "".join(f"#!lua flags={flags}" for flags in FLAGS.findall(included[name]))
    first: dict[str, str] = {}
    for part in FIRST.findall(included[name]):
        first |= resolve_includes(folder, part)
    parts = drop_unused_definitions([preamble, *(first | included).values()])
    if first:
        parts = delay_definitions(parts, 1 + len(first))
    if on_failure and "queues" in included:
        parts = [PROGRESS, *parts, FAILURE, _read(folder, on_failure)]
    guard = [REFUSE_MOVING_SLOT] if finds_keys else []
    return Script(name, "\n".join([shebang, *parts]), "\n".join([shebang, *guard, *parts]))


def resolve_includes(folder: Traversable, name: str) -> dict[str, str]:
    """Return the texts of a Lua file and its includes by name, each after the files that it includes.

    Raises ValueError if files include each other."""
    found: dict[str, str] = {}

    def add(part: str, including: tuple[str, ...]) -> None:
        if part in including:
            raise ValueError(f"Lua files include each other: {', '.join((*including, part))}")
        if part not in found:
            text = _read(folder, part)
            for names in INCLUDE.findall(text):
                for other in names.split(","):
                    add(other.strip(), (*including, part))
            found[part] = text

    add(name, ())
    return found


def _read(folder: Traversable, name: str) -> str:
    return (folder / f"{name}.lua").read_text(encoding="utf-8")


def _compute_sha(source: str) -> str:
    return hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


def run(client: Valkey, call: ScriptCall[T]) -> T:
    """Run a call and return the parsed reply. Sends the source if the server does not have the script."""
    source, sha = call.script.select_source(client)
    with translate_errors():
        try:
            answer: Any = client.execute_command("EVALSHA", sha, *build_arguments(call))
        except NoScriptError:
            answer = client.execute_command("EVAL", source, *build_arguments(call))
    return call.parse(answer)


async def run_async(client: AsyncValkey, call: ScriptCall[T]) -> T:
    source, sha = call.script.select_source(client)
    with translate_errors():
        try:
            answer: Any = await client.execute_command("EVALSHA", sha, *build_arguments(call))
        except NoScriptError:
            answer = await client.execute_command("EVAL", source, *build_arguments(call))
    return call.parse(answer)


def build_arguments(call: ScriptCall[Any]) -> Sequence[Arg]:
    """Return what follows the script in EVAL and EVALSHA."""
    return (len(call.keys), *call.keys, *call.args)
