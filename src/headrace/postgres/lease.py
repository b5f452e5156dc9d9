"""A lease with fencing, stored as a row in PostgreSQL: see runtime/lease.py.

Every transaction that writes first checks that the row still has the holder's token (`fence`): a late process finds
another token and writes nothing.
"""

from __future__ import annotations

from headrace.postgres.connect import Connection, Pool, transaction
from headrace.postgres.queries import QUERIES
from headrace.runtime.lease import HELD_ELSEWHERE, Lease, LeaseState


class PostgresLease(Lease):
    """Lease in PostgreSQL; subclasses set `name` and the error to raise."""

    def __init__(self, pool: Pool, lease_s: float) -> None:
        super().__init__(lease_s)
        self._pool = pool

    def fence(self, conn: Connection) -> None:
        """Raise `fenced` unless the lease is held. Call it at the beginning of each transaction that writes."""
        if self.token is None or conn.execute(QUERIES["check_lease"], self._params()).fetchone() is None:
            self.mark_lost()
            raise self.fenced

    def _request(self) -> LeaseState:
        with transaction(self._pool) as conn:
            row = conn.execute(QUERIES["acquire_lease"], {**self._params(), "lease_s": self._lease_s}).fetchone()
        return HELD_ELSEWHERE if row is None else LeaseState(token=int(row[0]))

    def _release(self) -> None:
        if self.token is not None:
            with transaction(self._pool) as conn:
                conn.execute(QUERIES["release_lease"], self._params())

    def _params(self) -> dict[str, object]:
        return {"name": self.name, "holder": self.holder, "token": self.token}
