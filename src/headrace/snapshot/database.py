"""Validate the queries of SQL families in PostgreSQL, and read their rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from decimal import Decimal
from typing import Any, LiteralString, cast

from headrace.errors import HeadraceError, ServiceUnavailable
from headrace.postgres.connect import Connection, available, connect
from headrace.snapshot.declared import HEADRACE, Declared
from headrace.snapshot.families import BadSeries, Family, InvalidFamily, Ranked, Series, limited, refuse_duplicates
from headrace.snapshot.queries import QUERIES


class FamilyUnreadable(HeadraceError):
    """The SQL of a family failed. Nothing was published; the previous snapshot is still served."""


def validate(url: str, declared: Sequence[Declared], timeout_s: float) -> None:
    """Check that each query runs and has the declared columns. Raises InvalidFamily, or ServiceUnavailable."""
    with closing(connect(url, statement_timeout_s=timeout_s)) as conn, available():
        for each in declared:
            _validate(conn, each)


def read(url: str, declared: Sequence[Declared], timeout_s: float) -> tuple[list[Family], int]:
    """Read all families in one transaction and return them with the number of rows."""
    with closing(connect(url, statement_timeout_s=timeout_s)) as conn, available(), conn.transaction():
        conn.execute(QUERIES["repeatable_read"])
        results = [(each, _rows(conn, each)) for each in declared]
    # Outside the transaction, because PostgreSQL ends idle transactions and many rows take a while.
    return [_family(each, rows) for each, rows in results], sum(len(rows) for _, rows in results)


def _validate(conn: Connection, each: Declared) -> None:
    try:
        with available():
            cursor = conn.execute(_trusted(f"SELECT * FROM (\n{each.sql}\n) AS family LIMIT 0"))
    except ServiceUnavailable:
        raise  # not caused by the query
    except Exception as error:
        if each.preset == HEADRACE:
            raise  # the query of the preset is correct: tables are missing
        reason = _words(error.__cause__ or error)
        raise InvalidFamily(
            f"PostgreSQL rejected the SQL of family {each.name}: {reason}. Nothing was started."
        ) from error
    columns = [column.name for column in cursor.description or ()]
    if missing := [name for name in each.columns if name not in columns]:
        raise InvalidFamily(
            f"The SQL of family {each.name} does not return column {missing[0]}; it returns {', '.join(columns)}. "
            "Nothing was started."
        )


def _rows(conn: Connection, each: Declared) -> list[dict[str, Any]]:
    try:
        cursor = conn.execute(_trusted(each.sql))
        columns = [column.name for column in cursor.description or ()]
        return [dict(zip(columns, row, strict=True)) for row in cursor]
    except Exception as error:
        raise FamilyUnreadable(
            f"Could not read family {each.name}: {_words(error)}. Nothing was published; the previous snapshot is "
            "still served."
        ) from error


def _family(each: Declared, rows: Sequence[dict[str, Any]]) -> Family:
    ranked: list[Ranked] = []
    for row in rows:
        labels = tuple("" if row[name] is None else str(row[name]) for name in each.described.labels)
        value = _value(each, labels, row[each.column])
        if value is not None:
            ranked.append(Ranked(Series(labels, value), _time(each, row[each.rank]) if each.rank else None))
    # Checked before aggregation, which could merge two samples with the same labels.
    whole = Family(each.described, [row.series for row in ranked])
    refuse_duplicates(whole)
    return whole if each.top is None else limited(each.described, ranked, each.top)


def _value(each: Declared, labels: tuple[str, ...], value: object) -> float | None:
    """Return the value of a sample; None if an age family has no oldest time."""
    if each.described.aged:
        return _time(each, value)
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return float(value)
    raise BadSeries(
        f"Family {each.name}: {value!r} in {each.column} is not a number (labels "
        f"{dict(zip(each.described.labels, labels, strict=True))}). Nothing was published."
    )


def _time(each: Declared, value: object) -> float | None:
    match value:
        case None:
            return None
        case datetime() if value.tzinfo is not None:
            return value.timestamp()
        case int() | float() | Decimal() if math.isfinite(value):
            return float(value)
        case _:
            raise BadSeries(
                f"Family {each.name}: {value!r} is not a time (expected timestamptz or Unix seconds). "
                "Nothing was published."
            )


def _trusted(sql: str) -> LiteralString:
    """Mark SQL from the operator's file as trusted: the operator has direct access to the database anyway."""
    return cast(LiteralString, sql)


def _words(error: BaseException) -> str:
    return str(error).partition("\n")[0]
