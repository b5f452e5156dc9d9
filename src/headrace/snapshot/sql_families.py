"""Metric families declared as SQL: presets that ship with Headrace (presets/*.toml), and the operator's file.

    [[family]]
    name = "shop_orders"
    help = "Orders by state."
    labels = ["state"]          # columns of the query; NULL becomes ''
    value = "orders"            # a numeric column; or `oldest`, a time column that is served as an age
    sql = "SELECT state, count(*) AS orders, min(placed_at) AS since FROM orders GROUP BY state"
    top = 1000                  # maximum number of series, by oldest `rank`; the rest is aggregated into one
    rank = "since"

Invalid declarations are refused when the file is read, not at a scrape. Queries run in sql_family_reader.py.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, cast

from headrace.snapshot.families import COUNTER, GAUGE, TOTAL, FamilyDescriptor, InvalidFamily

PRESETS = files("headrace.snapshot") / "presets"
HEADRACE_PRESET = "headrace"
RESERVED_PREFIXES = ("headrace_", "convoy_queue_metrics_")
"""Name prefixes of Headrace's own metrics."""

NAME_PATTERN = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
LABEL_PATTERN = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
KEYS = frozenset({"name", "help", "type", "labels", "value", "oldest", "sql", "top", "rank", "keep_name"})
RESERVED_LABELS = frozenset({"le", "quantile"})
RESERVED_SUFFIXES = ("_bucket", "_sum", "_count", "_created", "_info")


@dataclass(frozen=True)
class SqlFamily:
    descriptor: FamilyDescriptor
    sql: str
    column: str  # of the value, or of the oldest time
    top: int | None = None
    rank: str | None = None
    preset: str | None = None  # None: declared in the operator's file

    @property
    def name(self) -> str:
        return self.descriptor.name

    @property
    def columns(self) -> list[str]:
        """Columns that the query must return."""
        return [*self.descriptor.labels, self.column, *([self.rank] if self.rank else [])]


def load_sql_families(presets: Sequence[str], file: Path | None) -> list[SqlFamily]:
    """Load the families of the presets and of the file. Raises InvalidFamily."""
    families = [each for preset in presets for each in _read_file(PRESETS / f"{preset}.toml", preset)]
    if file is not None:
        families += _read_file(file, None)
    check_unique_names(each.descriptor for each in families)
    return families


def check_unique_names(described: Iterable[FamilyDescriptor]) -> None:
    seen: dict[str, str] = {}
    for each in described:
        # A counter uses two names: that of its samples, and the one without _total in OpenMetrics metadata.
        names = {each.name, each.name.removesuffix(TOTAL)} if each.type == COUNTER else {each.name}
        if taken := sorted(names & seen.keys()):
            raise InvalidFamily(f"Two families have the name {each.name} (or {seen[taken[0]]}). Nothing was started.")
        seen |= dict.fromkeys(names, each.name)


def _read_file(file: Traversable | Path, preset: str | None) -> list[SqlFamily]:
    try:
        document = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise InvalidFamily(f"Could not read families file {file}: {error.strerror}.") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise InvalidFamily(f"Families file {file} is not valid TOML: {error}.") from error
    tables: object = document.get("family", [])
    if not isinstance(tables, list) or document.keys() - {"family"}:
        raise InvalidFamily(f"Families file {file} may contain only [[family]] tables.")
    return [
        _parse_family(table, f"family {number} of {file}", preset) for number, table in enumerate(cast(Any, tables), 1)
    ]


def _parse_family(table: dict[str, Any], where: str, preset: str | None) -> SqlFamily:
    if not isinstance(cast(object, table), dict):
        raise _invalid_family(where, "not a table")
    name = _require_text(table, "name", where)
    where = f"{where} ({name})"
    if unknown := table.keys() - KEYS:
        raise _invalid_family(where, f"unknown key {sorted(unknown)[0]}; allowed: {', '.join(sorted(KEYS))}")
    kind = table.get("type", GAUGE)
    if kind not in (GAUGE, COUNTER):
        raise _invalid_family(where, "type must be gauge or counter")
    aged = "oldest" in table
    if aged == ("value" in table):
        raise _invalid_family(where, "exactly one of value (a numeric column) and oldest (a time column) is required")
    if aged and kind == COUNTER:
        raise _invalid_family(where, "oldest cannot be used with a counter")
    column = _require_text(table, "oldest" if aged else "value", where)
    rank = table.get("rank", column if aged else None)
    labels = table.get("labels", [])
    if not isinstance(labels, list) or not all(map(_is_text, cast("list[object]", labels))):
        raise _invalid_family(where, "labels is empty or has the wrong type")
    labels = tuple(cast("list[str]", labels))
    described = FamilyDescriptor(name, kind, _require_text(table, "help", where), labels, is_age=aged)
    top = table.get("top")
    problem = (
        _find_name_problem(described, table.get("keep_name") is True, preset)
        or _find_label_problem(labels, column)
        or _find_top_problem(top, rank, kind)
    )
    if problem:
        raise _invalid_family(where, problem)
    sql = _require_text(table, "sql", where).rstrip().removesuffix(";")
    # Without `top` the rank has no effect, so the query need not return it.
    return SqlFamily(described, sql, column, top, rank if top else None, preset)


def _find_name_problem(described: FamilyDescriptor, keep_name: bool, preset: str | None) -> str | None:
    name = described.name
    if not NAME_PATTERN.fullmatch(name):
        return "name must consist of letters, digits and _, and must not begin with a digit"
    if preset is None and name.startswith(RESERVED_PREFIXES):
        return f"names that begin with {' or '.join(RESERVED_PREFIXES)} are reserved for Headrace"
    if name.endswith(RESERVED_SUFFIXES):
        return f"name must not end in {', '.join(RESERVED_SUFFIXES)}: Prometheus adds these suffixes itself"
    if described.type == COUNTER and not name.endswith(TOTAL):
        return f"the name of a counter must end in {TOTAL}"
    if described.type == GAUGE and name.endswith(TOTAL) and not keep_name:
        return f"a gauge whose name ends in {TOTAL} looks like a counter; set keep_name = true if this is intended"
    return None


def _find_label_problem(labels: Sequence[str], column: str) -> str | None:
    for label in labels:
        if not LABEL_PATTERN.fullmatch(label):
            return f"label {label!r} must consist of letters, digits and _, and not begin with a digit or __"
        if label in RESERVED_LABELS:
            return f"label {label} is reserved by Prometheus"
    if len(set(labels)) < len(labels):
        return "a label is listed twice"
    return f"column {column} is also a label" if column in labels else None


def _find_top_problem(top: object, rank: object, kind: str) -> str | None:
    if top is None:
        return None
    if not isinstance(top, int) or isinstance(top, bool) or top < 1:
        return "top must be a whole number, at least 1"
    if not isinstance(rank, str):
        return "top requires rank, a time column, so that the oldest series are kept"
    if kind == COUNTER:
        return "top cannot be used with a counter: the sum of the remaining series would decrease"
    return None


def _require_text(table: dict[str, Any], key: str, where: str) -> str:
    if key not in table:
        raise _invalid_family(where, f"{key} is missing")
    if not _is_text(table[key]):
        raise _invalid_family(where, f"{key} is empty or has the wrong type")
    return table[key]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _invalid_family(where: str, problem: str) -> InvalidFamily:
    return InvalidFamily(f"Invalid {where}: {problem}. Nothing was started.")
