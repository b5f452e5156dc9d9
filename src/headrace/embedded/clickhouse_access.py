"""Access control of the embedded ClickHouse: statements can use tables, but no files, programs or other servers.

The engine enforces most of it through the grants of its only user (`build_users_config`): no files, URLs and other
sources, no dictionaries, functions, backups or SYSTEM statements; settings that name files are fixed. `StatementCheck`
finds what the engine does not check: the function `file`, INTO OUTFILE, FROM INFILE, disks, and table functions and
engines that need no grant but are not on the allow-list. It checks the statement as formatted by the engine, in which
names have no comments, escapes or alternative spellings.
"""

from __future__ import annotations

import re
from collections.abc import Collection

USER = "headrace"

TABLE_FUNCTIONS = frozenset(
    {
        "format",
        "fuzzQuery",  # a function of this name returns text
        "generateRandom",
        "generateSeries",
        "generate_series",
        "input",
        "merge",
        "mergeTreeIndex",
        "mergeTreeProjection",
        "null",
        "numbers",
        "numbers_mt",
        "primes",
        "SQLStandardValues",
        "values",
        "view",
        "viewExplain",
        "viewIfPermitted",
        "zeros",
        "zeros_mt",
    }
)
"""Allowed table functions: they compute rows or read tables."""

TABLE_ENGINES = frozenset(
    {
        "AggregatingMergeTree",
        "Buffer",
        "CoalescingMergeTree",
        "CollapsingMergeTree",
        "GenerateRandom",
        "Join",
        "Log",
        "MaterializedView",
        "Memory",
        "Merge",
        "MergeTree",
        "Null",
        "ReplacingMergeTree",
        "Set",
        "StripeLog",
        "SummingMergeTree",
        "TinyLog",
        "VersionedCollapsingMergeTree",
        "View",
    }
)
"""Allowed table engines: they store their rows in the data directory or in memory."""

DATABASE_ENGINES = frozenset({"Atomic", "Memory"})

RIGHTS = (
    "SHOW",
    "SELECT",
    "INSERT",
    "ALTER TABLE",
    "ALTER VIEW",
    "CREATE DATABASE",
    "CREATE TABLE",
    "CREATE VIEW",
    "CREATE TEMPORARY TABLE",
    "DROP",
    "TRUNCATE",
    "OPTIMIZE",
    "CHECK",
    "KILL QUERY",
)

FIXED_SETTINGS = {
    # Files that would be read as a schema or template.
    "format_schema": "",
    "format_template_resultset": "",
    "format_template_row": "",
    # Other query languages and shorthands, which `StatementCheck` does not parse.
    "allow_experimental_eval_table_function": "0",
    "dialect": "clickhouse",
    "implicit_select": "0",
}
"""Settings that clients cannot change, and their values."""

VALUE_EXPRESSIONS = (
    "input_format_values_deduce_templates_of_expressions",
    "input_format_values_interpret_expressions",
)
"""Settings that allow expressions in the data of INSERT ... VALUES; enabled only for data without forbidden calls."""

_ENGINES = frozenset(name.encode() for name in TABLE_ENGINES | DATABASE_ENGINES)
_ENGINE_STATEMENTS = (b"CREATE", b"ATTACH", b"REPLACE")  # in other statements, `engine = x` compares a column
_FILE_CLAUSES = {b"OUTFILE": b"INTO", b"INFILE": b"FROM"}
_SUSPICIOUS_WORDS = (b"outfile", b"infile", b"engine", b"input_format_values")
_DISK_FUNCTION = b"disk"  # a function in the SETTINGS of a table
_FILE_FUNCTION = b"file"  # a function that can be used without parentheses: arrayMap(file, paths), * APPLY file
_TOKEN = re.compile(rb"'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`|\"(?:[^\"\\]|\\.)*\"|\w+|\S", re.DOTALL)


def build_users_config() -> str:
    """Return the engine's configuration of users, as XML."""
    values = {**FIXED_SETTINGS, **dict.fromkeys(VALUE_EXPRESSIONS, "0")}
    settings = "".join(f"<{name}>{value}</{name}>" for name, value in values.items())
    fixed = "".join(f"<{name}><const/></{name}>" for name in FIXED_SETTINGS)
    engines = "".join(f"<query>GRANT TABLE ENGINE ON {engine}</query>" for engine in sorted(TABLE_ENGINES))
    return f"""<clickhouse>
  <profiles><default>{settings}<constraints>{fixed}</constraints></default></profiles>
  <users><default>
    <password></password>
    <networks><ip>::/0</ip></networks>
    <profile>default</profile>
    <quota>default</quota>
    <grants><query>GRANT {", ".join(RIGHTS)} ON *.*</query>{engines}</grants>
  </default></users>
  <quotas><default/></quotas>
</clickhouse>
"""


class StatementCheck:
    """Finds forbidden functions, engines and clauses in statements. `table_functions`: all that the engine has."""

    def __init__(self, table_functions: Collection[str]) -> None:
        allowed = {name.lower() for name in TABLE_FUNCTIONS}
        refused = {name.lower().encode() for name in table_functions if name.lower() not in allowed}
        self._refused = frozenset({*refused, _DISK_FUNCTION})
        words = map(re.escape, sorted({*self._refused, *_SUSPICIOUS_WORDS, _FILE_FUNCTION}))
        self._words = re.compile(b"|".join(words), re.IGNORECASE)

    def is_suspicious(self, sql: bytes) -> bool:
        """Return False if a statement or expression cannot contain anything forbidden, in any spelling.

        A backslash in a quoted name can encode any letter, so such names are suspicious.
        """
        has_escaped_name = b"\\" in sql and (b"`" in sql or b'"' in sql)
        return has_escaped_name or self._words.search(sql) is not None

    def find_forbidden(self, formatted: bytes) -> str | None:
        """Return why a statement, as formatted by the engine, is forbidden, or None if it is allowed."""
        tokens = [b"", b"", *_TOKEN.findall(formatted), b""]
        names_an_engine = tokens[2].upper() in _ENGINE_STATEMENTS
        for second, before, token, after in zip(tokens, tokens[1:], tokens[2:], tokens[3:], strict=False):
            if token.startswith(b"'"):
                continue
            name = token[1:-1] if token[:1] in b'`"' and len(token) > 1 else token
            if before.upper() == _FILE_CLAUSES.get(name.upper()):
                return "INTO OUTFILE and FROM INFILE are not allowed: this server reads and writes no files"
            if names_an_engine and (second.upper(), before) == (b"ENGINE", b"=") and name not in _ENGINES:
                return f"The engine {name.decode(errors='replace')} is not allowed on this server"
            if name.decode(errors="replace") in VALUE_EXPRESSIONS:
                return f"The setting {name.decode()} cannot be changed on this server"
            if name == _FILE_FUNCTION and before != b".":
                return "The function file is not allowed: this server reads no files (write table.`file` for a column)"
            if name.lower() in self._refused and after == b"(":
                return f"The function {name.decode(errors='replace')} is not allowed on this server"
        return None
