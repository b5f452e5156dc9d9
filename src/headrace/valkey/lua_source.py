"""Text of Lua scripts: drop or delay what is not used, and find the commands that a script calls."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Relies on the format of the scripts: a top-level function begins in the first column, and ends there or on one line. A
# constant is written in capitals. Constants that call a function or take several lines are treated as statements.
FUNCTION = re.compile(
    r"^local function (?P<name>\w+)\((?:.*\bend$|.*$(?:\n.*$)*?\nend$)",
    re.MULTILINE,
)
DEFINITION = re.compile(
    rf"{FUNCTION.pattern}"
    r"|^local (?P<constants>[A-Z][A-Z0-9_]*(?:, [A-Z][A-Z0-9_]*)*) = (?:[^({\n]|\{[^({}\n]*\})*$(?!\n[ \t]+\S)",
    re.MULTILINE,
)
COMMENT = re.compile(
    r"^\s*--.*$|--[^'\"\]\n]*$", re.MULTILINE
)  # at the end of a line only without quotes, because it may be part of a string
WORD = re.compile(r"[A-Za-z_]\w*")


def drop_unused_definitions(parts: Sequence[str]) -> list[str]:
    """Return the parts of a script without the functions and constants that it does not use.

    Lua creates every function of a script each time the script runs. In scripts that handle one job, unused functions
    took up to a tenth of the server's time."""
    texts = {name: found[0] for part in parts for found in DEFINITION.finditer(part) for name in _list_names(found)}
    needed: set[str] = set()
    unread = [DEFINITION.sub("", part) for part in parts]
    while unread:
        words = set(WORD.findall(COMMENT.sub("", unread.pop())))
        found = (words & texts.keys()) - needed
        needed |= found
        unread += [texts[name] for name in found]
    return [
        DEFINITION.sub(lambda found: "" if needed.isdisjoint(_list_names(found)) else found[0], part) for part in parts
    ]


def delay_definitions(parts: Sequence[str], first: int) -> list[str]:
    """Move the definitions in the first parts that only the other parts use between the two, because the first parts
    may return before the others run."""
    front = drop_unused_definitions(parts[:first])
    kept = {found[0] for part in front for found in DEFINITION.finditer(part)}
    moved = [found[0] for part in parts[:first] for found in DEFINITION.finditer(part) if found[0] not in kept]
    return [*front, *moved, *parts[first:]]


def _list_names(definition: re.Match[str]) -> list[str]:
    return [definition["name"]] if definition["name"] else definition["constants"].split(", ")


CALL = re.compile(r"\b(?:redis\.p?call|call_in_chunks)\(\s*'([A-Z]+)'(?:,\s*'([A-Z]+)')?")
CONTAINERS = frozenset({"xgroup", "xinfo"})
"""Commands whose subcommands have access rules of their own."""


def find_commands(source: str) -> frozenset[str]:
    """Return the commands that a script calls, as named in access rules: `hset`, `xinfo|groups`.

    Scripts name a command literally where they call it, or pass it to `call_in_chunks` of queue/lua/chunks.lua."""
    found = ((name.lower(), sub.lower()) for name, sub in CALL.findall(COMMENT.sub("", source)))
    return frozenset(f"{name}|{sub}" if name in CONTAINERS else name for name, sub in found)
