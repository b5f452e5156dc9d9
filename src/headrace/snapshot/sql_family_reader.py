"""Validate the queries of SQL families in PostgreSQL, and read their rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from decimal import Decimal
from typing import Any, LiteralString, cast

from headrace.errors import HeadraceError, ServiceUnavailable
from headrace.postgres.connect import Connection, connect, translate_errors
from headrace.snapshot.families import (
    InvalidFamily,
    InvalidSamples,
    MetricSample,
    RankedSample,
    SnapshotFamily,
    limit_to_top,
    refuse_duplicates,
)
from headrace.snapshot.queries import QUERIES
from headrace.snapshot.sql_families import HEADRACE_PRESET, SqlFamily


class FamilyUnreadable(HeadraceError):
    """The SQL of a family failed. Nothing was published; the previous snapshot is still served."""


def validate_families(url: str, declared: Sequence[SqlFamily], timeout_s: float) -> None:
    """Check that each query runs and has the declared columns. Raises InvalidFamily, or ServiceUnavailable."""
    with closing(connect(url, statement_timeout_s=timeout_s)) as conn, translate_errors():
        for each in declared:
            _validate(conn, each)


def read_families(url: str, declared: Sequence[SqlFamily], timeout_s: float) -> tuple[list[SnapshotFamily], int]:
    """Read all families in one transaction and return them with the number of rows."""
    with closing(connect(url, statement_timeout_s=timeout_s)) as conn, translate_errors(), conn.transaction():
        conn.execute(QUERIES["repeatable_read"])
        results = [(each, _fetch_rows(conn, each)) for each in declared]
    # Outside the transaction, because PostgreSQL ends idle transactions and many rows take a while.
    return [_build_family(each, rows) for each, rows in results], sum(len(rows) for _, rows in results)


def _validate(conn: Connection, each: SqlFamily) -> None:
    try:
        with translate_errors():
            cursor = conn.execute(_trust_sql(f"SELECT * FROM (\n{each.sql}\n) AS family LIMIT 0"))
    except ServiceUnavailable:
        raise  # not caused by the query
    except Exception as error:
        if each.preset == HEADRACE_PRESET:
            raise  # the query of the preset is correct: tables are missing
        reason = _format_error(error.__cause__ or error)
        raise InvalidFamily(
            f"PostgreSQL rejected the SQL of family {each.name}: {reason}. Nothing was started."
        ) from error
    columns = [column.name for column in cursor.description or ()]
    if missing := [name for name in each.columns if name not in columns]:
        raise InvalidFamily(
            f"The SQL of family {each.name} does not return column {missing[0]}; it returns {', '.join(columns)}. "
            "Nothing was started."
        )


def _fetch_rows(conn: Connection, each: SqlFamily) -> list[dict[str, Any]]:
    try:
        cursor = conn.execute(_trust_sql(each.sql))
        columns = [column.name for column in cursor.description or ()]
        return [dict(zip(columns, row, strict=True)) for row in cursor]
    except Exception as error:
        raise FamilyUnreadable(
            f"Could not read family {each.name}: {_format_error(error)}. Nothing was published; the previous snapshot "
            "is still served."
        ) from error


def _build_family(each: SqlFamily, rows: Sequence[dict[str, Any]]) -> SnapshotFamily:
    ranked: list[RankedSample] = []
    for row in rows:
        labels = tuple("" if row[name] is None else str(row[name]) for name in each.descriptor.labels)
        value = _parse_value(each, labels, row[each.column])
        if value is not None:
            ranked.append(
                RankedSample(MetricSample(labels, value), _parse_time(each, row[each.rank]) if each.rank else None)
            )
    # Checked before aggregation, which could merge two samples with the same labels.
    whole = SnapshotFamily(each.descriptor, [row.sample for row in ranked])
    refuse_duplicates(whole)
    return whole if each.top is None else limit_to_top(each.descriptor, ranked, each.top)


def _parse_value(each: SqlFamily, labels: tuple[str, ...], value: object) -> float | None:
    """Return the value of a sample; None if an age family has no oldest time."""
    if each.descriptor.is_age:
        return _parse_time(each, value)
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return float(value)
    raise InvalidSamples(
        f"Family {each.name}: {value!r} in {each.column} is not a number (labels "
        f"{dict(zip(each.descriptor.labels, labels, strict=True))}). Nothing was published."
    )


def _parse_time(each: SqlFamily, value: object) -> float | None:
    match value:
        case None:
            return None
        case datetime() if value.tzinfo is not None:
            return value.timestamp()
        case int() | float() | Decimal() if math.isfinite(value):
            return float(value)
        case _:
            raise InvalidSamples(
                f"Family {each.name}: {value!r} is not a time (expected timestamptz or Unix seconds). "
                "Nothing was published."
            )


def _trust_sql(sql: str) -> LiteralString:
    """Mark SQL from the operator's file as trusted: the operator has direct access to the database anyway."""
    return cast(LiteralString, sql)


def _format_error(error: BaseException) -> str:
    return str(error).partition("\n")[0]
