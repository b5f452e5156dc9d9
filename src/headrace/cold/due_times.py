"""When delayed jobs in PostgreSQL are due."""

from __future__ import annotations

from headrace.cold.queries import QUERIES
from headrace.model.names import QueueRef
from headrace.postgres.connect import Connection


def read_due_times(conn: Connection, until_ms: float, at_most: int) -> dict[QueueRef, list[float]]:
    """Return when delayed jobs are due, in milliseconds, for each queue: those due until then, the first `at_most` of
    each queue."""
    found: dict[QueueRef, list[float]] = {}
    values = {"until": until_ms, "most": at_most}
    for org, project, env, queue, due_ms in conn.execute(QUERIES["list_due_times"], values):
        found.setdefault(QueueRef(org, project, env, queue), []).append(due_ms)
    return found
