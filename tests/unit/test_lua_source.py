"""What a server is sent of a Lua script."""

from __future__ import annotations

import re

import pytest

from headrace.queue import scripts
from headrace.valkey.lua_source import COMMENT, FUNCTION, WORD, drop_unused_functions, find_commands

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
"""
BODY = "-- unused, too\nreturn through_another(CONSTANT)\n"


def test_keeps_what_is_used_directly_or_through_another_function() -> None:
    included, body = drop_unused_functions([INCLUDED, BODY])
    assert [found["name"] for found in FUNCTION.finditer(included)] == ["one_line", "through_another"]
    assert "return n\n" not in included
    assert "local CONSTANT = 1" in included
    assert body == BODY


@pytest.mark.parametrize("name", scripts.SCRIPTS)
def test_every_function_of_a_queue_script_is_used(name: str) -> None:
    source = COMMENT.sub("", scripts.script(name).source)
    words = WORD.findall(source)
    for found in FUNCTION.finditer(source):
        assert words.count(found["name"]) > 1, f"{name}.lua sends {found['name']}, which it does not use"


def test_finds_the_commands_that_a_script_calls() -> None:
    source = """
    redis.call('HSET', KEYS[1], 'GET', 1)
    -- redis.call('FLUSHALL')
    local answer = redis.pcall('XINFO', 'GROUPS', KEYS[1])
    in_chunks('ZADD', key, members)
    """
    assert find_commands(source) == {"hset", "xinfo|groups", "zadd"}


@pytest.mark.parametrize("name", scripts.SCRIPTS)
def test_every_call_of_a_queue_script_names_its_command(name: str) -> None:
    """Access rules are made from the names. `in_chunks` is given one itself."""
    source = COMMENT.sub("", scripts.script(name).source)
    calls = re.findall(r"(?:redis\.p?call|in_chunks)\((.)", source)
    unnamed = len([first for first in calls if first != "'"])
    assert unnamed == 2 * source.count("function in_chunks(command, key, members)")
