"""Assembly of Lua scripts from their includes, and the commands that they call."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from headrace.model.event import generate_event_lua
from headrace.queue import scripts
from headrace.valkey.lua_source import (
    COMMENT,
    DEFINITION,
    FUNCTION,
    WORD,
    delay_definitions,
    drop_unused_definitions,
    find_commands,
)
from headrace.valkey.scripts import resolve_includes

FOLDERS = [Path(str(files("headrace") / package / "lua")) for package in ("queue", "streams", "snapshot", "valkey")]
LUA_FILES = [path for folder in FOLDERS for path in sorted(folder.glob("*.lua"))]
STRING = re.compile(r"'(?:\\.|[^'\\\n])*'")
DEFINED = re.compile(
    r"\blocal function (\w+\([\w, ]*)\)|\blocal (?!function)(\w+(?:, \w+)*)"  # functions and variables
    r"|\bfunction(?: \w+)?\(([\w, ]*)\)|\bfor ([\w, ]+) (?:in|=)"  # parameters and variables of loops
)
USED = re.compile(r"(?<![\w.:])(?:([A-Z][A-Z_]+)\b|([a-z]\w*)\()")
"""Constants, and functions where they are called."""

KEYWORDS = frozenset({"and", "or", "not", "if", "in", "return", "function", "elseif", "while", "until"})
GLOBALS = frozenset({"KEYS", "ARGV", "ipairs", "pairs", "tonumber", "tostring", "type", "unpack", "error"})

INCLUDED = """\
local function unused(n)
  return n
end
local function one_line(n) return n + 1 end
local function through_another(n)
  if n then -- unused
    return one_line(n)
  end
end
local CONSTANT = 1
local UNUSED, UNUSED_TOO = 'a' .. 'b', { 1, 2 }
local CALLED = tonumber(1)
local LINES = { 1,
  2 }
local ONE, OTHER = 1, 2
"""
BODY = "-- unused, too\nreturn through_another(CONSTANT) + OTHER\n"


def test_keeps_what_is_used_directly_or_through_another_function() -> None:
    included, body = drop_unused_definitions([INCLUDED, BODY])
    assert [found["name"] for found in FUNCTION.finditer(included)] == ["one_line", "through_another"]
    assert "return n\n" not in included
    assert [found["constants"] for found in DEFINITION.finditer(included) if found["constants"]] == [
        "CONSTANT",
        "ONE, OTHER",
    ]
    assert "local CALLED = tonumber(1)\nlocal LINES = { 1,\n  2 }\n" in included  # these may have effects
    assert body == BODY


def test_moves_what_the_first_parts_do_not_use_behind_them() -> None:
    first = "if one_line(1) == 2 then return 1 end\n"
    parts = delay_definitions(drop_unused_definitions([INCLUDED, first, BODY]), 2)
    source = "\n".join(parts)
    order = ["function one_line", "CALLED", first, "function through_another", "CONSTANT", "ONE, OTHER", BODY]
    positions = [source.index(text) for text in order]
    assert positions == sorted(positions)
    assert all(source.count(text) == 1 for text in ("function one_line", "function through_another", "ONE, OTHER"))


@pytest.mark.parametrize("name", scripts.SCRIPTS)
def test_every_function_of_a_queue_script_is_used_and_defined_before(name: str) -> None:
    source = COMMENT.sub("", scripts.script(name).source)
    words = WORD.findall(source)
    for found in DEFINITION.finditer(source):
        for defined in [found["name"]] if found["name"] else found["constants"].split(", "):
            if len(defined) > 1:  # E and Q are also names of parameters
                first = re.search(rf"(?<![\w.:'])\b{defined}\b(?! =)", source)
                assert not first or first.start() >= found.start(), f"{name}.lua uses {defined} before it is defined"
    for found in FUNCTION.finditer(source):
        assert words.count(found["name"]) > 1, f"{name}.lua sends {found['name']}, which it does not use"


@pytest.mark.parametrize("path", LUA_FILES, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_a_file_includes_what_defines_the_names_that_it_uses(path: Path) -> None:
    """The server notices that a name is not defined, or defined later, only when it runs the line."""
    known = KEYWORDS | GLOBALS
    for text in [generate_event_lua(), *resolve_includes(path.parent, path.stem).values()]:
        for line in COMMENT.sub("", text).splitlines():
            code = STRING.sub("''", line)
            known |= set(WORD.findall(" ".join(group for found in DEFINED.findall(code) for group in found)))
            unknown = {word for found in USED.findall(code) for word in found if word} - known
            assert not unknown, f"{path.name}: {line}"


def test_puts_each_include_once_after_what_it_includes(tmp_path: Path) -> None:
    for name, text in {"a": "--@include b, c\n", "b": "--@include c, d\n", "c": "", "d": "--@include c\n"}.items():
        (tmp_path / f"{name}.lua").write_text(text)
    assert list(resolve_includes(tmp_path, "a")) == ["c", "d", "b", "a"]


def test_refuses_files_that_include_each_other(tmp_path: Path) -> None:
    for name, text in {"a": "--@include b\n", "b": "--@include a\n"}.items():
        (tmp_path / f"{name}.lua").write_text(text)
    with pytest.raises(ValueError, match="a, b, a"):
        resolve_includes(tmp_path, "a")


def test_finds_the_commands_that_a_script_calls() -> None:
    source = """
    redis.call('HSET', KEYS[1], 'GET', 1)
    -- redis.call('FLUSHALL')
    local answer = redis.pcall('XINFO', 'GROUPS', KEYS[1])
    call_in_chunks('ZADD', key, members)
    """
    assert find_commands(source) == {"hset", "xinfo|groups", "zadd"}


@pytest.mark.parametrize("name", scripts.SCRIPTS)
def test_every_call_of_a_queue_script_names_its_command(name: str) -> None:
    """Access rules are derived from the names. `call_in_chunks` itself gets the name as a parameter."""
    source = COMMENT.sub("", scripts.script(name).source)
    calls = re.findall(r"(?:redis\.p?call|call_in_chunks)\((.)", source)
    unnamed = len([first for first in calls if first != "'"])
    assert unnamed == 2 * source.count("function call_in_chunks(command, key, members)")
