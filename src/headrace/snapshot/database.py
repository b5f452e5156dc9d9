"""Declared families, asked of a PostgreSQL: would they work, and what do their rows make?"""

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
    """The SQL of a family failed. Nothing was published, and what was published before is served."""


def validate(url: str, declared: Sequence[Declared], timeout_s: float) -> None:
    """Raises InvalidFamily, or what the database's absence is."""
    with closing(connect(url, statement_timeout_s=timeout_s)) as conn, available():
        for each in declared:
            _validate(conn, each)


def read(url: str, declared: Sequence[Declared], timeout_s: float) -> tuple[list[Family], int]:
    """All of them as of one moment; and how many rows that were."""
    with closing(connect(url, statement_timeout_s=timeout_s)) as conn, available(), conn.transaction():
        conn.execute(QUERIES["repeatable_read"])
        found = [(each, _rows(conn, each)) for each in declared]
    # Not within the transaction: many rows take a while, and PostgreSQL ends one in which nothing happens.
    return [_family(each, rows) for each, rows in found], sum(len(rows) for _, rows in found)


def _validate(conn: Connection, each: Declared) -> None:
    try:
        with available():
            cursor = conn.execute(_trusted(f"SELECT * FROM (\n{each.sql}\n) AS family LIMIT 0"))
    except ServiceUnavailable:
        raise  # says nothing of the query
    except Exception as error:
        if each.preset == HEADRACE:
            raise  # it is right: tables are missing
        words = _words(error.__cause__ or error)
        raise InvalidFamily(
            f"The SQL of the family {each.name} is refused by PostgreSQL: {words}. Nothing was started."
        ) from error
    columns = [column.name for column in cursor.description or ()]
    if missing := [name for name in each.columns if name not in columns]:
        raise InvalidFamily(
            f"The SQL of the family {each.name} has no column {missing[0]}; it has {', '.join(columns)}. Nothing was "
            "started."
        )


def _rows(conn: Connection, each: Declared) -> list[dict[str, Any]]:
    try:
        cursor = conn.execute(_trusted(each.sql))
        columns = [column.name for column in cursor.description or ()]
        return [dict(zip(columns, row, strict=True)) for row in cursor]
    except Exception as error:
        raise FamilyUnreadable(
            f"The family {each.name} could not be read: {_words(error)}. Nothing was published, and what was published "
            "before is served."
        ) from error


def _family(each: Declared, rows: Sequence[dict[str, Any]]) -> Family:
    ranked: list[Ranked] = []
    for row in rows:
        labels = tuple("" if row[name] is None else str(row[name]) for name in each.described.labels)
        value = _value(each, labels, row[each.column])
        if value is not None:
            ranked.append(Ranked(Series(labels, value), _time(each, row[each.rank]) if each.rank else None))
    # Before any are summed up: two of the same labels might both be among the others.
    whole = Family(each.described, [row.series for row in ranked])
    refuse_duplicates(whole)
    return whole if each.top is None else limited(each.described, ranked, each.top)


def _value(each: Declared, labels: tuple[str, ...], value: object) -> float | None:
    """None: nothing waits, so there is no age to tell."""
    if each.described.aged:
        return _time(each, value)
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return float(value)
    raise BadSeries(
        f"The family {each.name} has no number in {each.column} where its labels are "
        f"{dict(zip(each.described.labels, labels, strict=True))}: {value!r}. Nothing was published."
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
                f"The family {each.name} has {value!r} where a time should be: a timestamptz, or seconds since 1970. "
                "Nothing was published."
            )


def _trusted(sql: str) -> LiteralString:
    """Written by whoever runs this process, who could as well ask the database directly."""
    return cast(LiteralString, sql)


def _words(error: BaseException) -> str:
    return str(error).partition("\n")[0]
