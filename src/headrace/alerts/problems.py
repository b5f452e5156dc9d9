"""Problems that other processes report about themselves; the evaluator raises an incident for each."""

from __future__ import annotations

from headrace.alerts.queries import QUERIES
from headrace.postgres.connect import Connection, Pool, connection

LIVES_S = 600.0
"""A report that was not repeated for this long belongs to a process that is gone."""
MAX_DETAIL = 500


def report_problem(pool: Pool, source: str, detail: str | None) -> None:
    """Record what is wrong with `source`, or with None that nothing is any more."""
    with connection(pool) as conn:
        if detail is None:
            conn.execute(QUERIES["delete_problem"], {"source": source})
        else:
            given = {"source": source, "detail": detail[:MAX_DETAIL].replace("\0", "")}
            conn.execute(QUERIES["put_problem"], given)


def recent_server_events(conn: Connection) -> dict[str, str]:
    """Return what happened to servers of late → what is known of it."""
    rows = conn.execute(QUERIES["list_recent_server_events"], {"within_s": LIVES_S}).fetchall()
    return {str(name): str(detail) for name, detail in rows}


def recent_problems(conn: Connection) -> dict[str, str]:
    """Return source → what is wrong."""
    rows = conn.execute(QUERIES["list_recent_problems"], {"within_s": LIVES_S}).fetchall()
    return {str(source): str(detail) for source, detail in rows}
