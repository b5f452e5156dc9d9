"""Extracts from a statement what the ClickHouse endpoint needs before the engine parses it.

Finds where the data of an INSERT starts, which output format is requested, and whether the statement needs a session,
from the words outside quotes, comments and parentheses. Pure functions on bytes, because the data of an INSERT need
not be text; imports only the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

_TOKEN = re.compile(
    rb"""
      (?P<skip> \s+ | --[^\n]* | \#[!\ ][^\n]* | /\*.*?\*/ )
    | (?P<quoted> '(?:[^'\\]|\\.)*' | `(?:[^`\\]|\\.)*` | "(?:[^"\\]|\\.)*" )
    | (?P<heredoc> \$(?P<tag>\w*)\$.*?\$(?P=tag)\$ )
    | (?P<word> \w+ )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
# The data starts after the format name, spaces and at most one line break.
_FORMAT_NAME = re.compile(rb"\s+(\w+)[ \t\f]*(?:\r?\n)?")

_QUERY_STARTS = frozenset({b"SELECT", b"WITH", b"FROM", b"("})


class SqlToken(NamedTuple):
    """A word (in upper case), a quoted name or a symbol outside all parentheses, and its position."""

    text: bytes
    start: int
    end: int


class InsertStatement(NamedTuple):
    """An INSERT with inline data: the statement without FORMAT, the format, and the offset of the data."""

    statement: bytes
    format: str
    data_start: int


def tokenize_top_level(sql: bytes) -> Iterator[SqlToken]:
    """Yield the tokens outside parentheses; an opening parenthesis represents everything inside it."""
    depth = 0
    for match in _TOKEN.finditer(sql):
        text = match[0]
        if match.lastgroup == "skip":
            continue
        if text == b")":
            depth -= 1
        elif depth == 0:
            yield SqlToken(text.upper() if match.lastgroup == "word" else text, match.start(), match.end())
        if text == b"(":
            depth += 1


def split_insert(sql: bytes) -> InsertStatement | None:
    """Split an INSERT with inline data; None for any other statement, including `INSERT ... SELECT`."""
    tokens = tokenize_top_level(sql)
    previous = next(tokens, None)
    if previous is None or previous.text != b"INSERT":
        return None
    for token in tokens:
        is_name = previous.text in (b"INTO", b"TABLE", b"FUNCTION", b".")
        previous = token
        if is_name:  # a table may be named `format` or `values`
            continue
        if token.text in (b"SELECT", b"WITH", b"FROM"):
            return None
        if token.text == b"VALUES":
            return InsertStatement(sql[: token.start], "Values", token.end)
        if token.text == b"FORMAT" and (name := _FORMAT_NAME.match(sql, token.end)):
            return InsertStatement(sql[: token.start], name[1].decode(), name.end())
    return None


def find_output_format(sql: bytes, tokens: list[SqlToken]) -> str | None:
    """Return the format of the FORMAT clause, which is last or followed by SETTINGS or INTO; None if there is none."""
    words = [token.text for token in tokens] + [b";"]
    for i in range(len(words) - 3, -1, -1):
        if words[i] == b"FORMAT" and words[i + 2] in (b";", b"SETTINGS", b"INTO"):
            return sql[tokens[i + 1].start : tokens[i + 1].end].decode(errors="replace")
    return None


def is_query(tokens: list[SqlToken]) -> bool:
    """Return whether the statement is some form of SELECT, the only kind whose result can be streamed."""
    return bool(tokens) and tokens[0].text in _QUERY_STARTS


def find_unsupported(tokens: list[SqlToken]) -> str | None:
    """Return why a statement cannot work without a session, or None if it can."""
    words = [token.text for token in tokens]
    first = words[0] if words else b""
    if first == b"SET":
        return "SET needs a session, which this endpoint does not support: send settings as URL parameters"
    if first == b"USE":
        return "USE needs a session, which this endpoint does not support: send the URL parameter 'database'"
    if first == b"CREATE" and b"TEMPORARY" in words[1:4]:
        return "Temporary tables need a session, which this endpoint does not support: use a table or external data"
    for clause, path in pairwise(words):
        if clause in (b"OUTFILE", b"INFILE") and path.startswith(b"'"):
            return "INTO OUTFILE and FROM INFILE work only in clickhouse-client: use the HTTP body"
    return None


def name_external_columns(types: str) -> str:
    """Return column definitions for external data that has only types, named _1, _2, ... as in ClickHouse."""
    sql = types.encode()
    commas = [token.start for token in tokenize_top_level(sql) if token.text == b","]
    bounds = zip([0, *(comma + 1 for comma in commas)], [*commas, len(sql)], strict=True)
    return ", ".join(f"_{n} {sql[start:end].decode().strip()}" for n, (start, end) in enumerate(bounds, 1))
