"""Problems reported by other processes; the evaluator opens an incident for each."""

from __future__ import annotations

from headrace.alerts.queries import QUERIES
from headrace.postgres.connect import Connection, Pool, transaction

PROBLEM_TTL_S = 600.0
"""Lifetime of a report in seconds; a process that still has the problem repeats it."""
MAX_DETAIL = 500


def report_problem(pool: Pool, source: str, detail: str | None) -> None:
    """Record a problem of `source`; with `detail` None, delete its record."""
    with transaction(pool) as conn:
        if detail is None:
            conn.execute(QUERIES["delete_problem"], {"source": source})
        else:
            row = {"source": source, "detail": detail[:MAX_DETAIL].replace("\0", "")}
            conn.execute(QUERIES["put_problem"], row)


def list_recent_server_events(conn: Connection) -> dict[str, str]:
    """Return recent failovers, data losses and restores of servers: name → description."""
    return dict(conn.execute(QUERIES["list_recent_server_events"], {"within_s": PROBLEM_TTL_S}).fetchall())


def list_recent_problems(conn: Connection) -> dict[str, str]:
    """Return the reported problems: source → description."""
    return dict(conn.execute(QUERIES["list_recent_problems"], {"within_s": PROBLEM_TTL_S}).fetchall())
