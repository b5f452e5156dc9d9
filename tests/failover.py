"""A Valkey primary with a replica that can be made to miss the primary's last writes and take over."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from headrace.embedded.process import LOOPBACK
from headrace.embedded.valkey import USER, EmbeddedValkey
from headrace.valkey.connect import Valkey, connect
from tests.conftest import READY_S, wait_until


class ReplicaPair:
    """A primary and its replica. Use as a context manager."""

    def __init__(self, folder: Path, extra: Sequence[str] = ()) -> None:
        self._folder = folder
        self._extra = ("--repl-diskless-sync-delay", "0", *extra)
        self.primary_server = EmbeddedValkey(folder / "primary", folder / "primary-log", extra=self._extra)

    def __enter__(self) -> ReplicaPair:
        self.primary_server.start()
        self.primary_server.wait_ready(READY_S)
        login = ("--masteruser", USER, "--masterauth", self.primary_server.passwords[USER])
        following = ("--replicaof", LOOPBACK, str(self.primary_server.port), *login)
        self.replica_server = EmbeddedValkey(
            self._folder / "replica", self._folder / "replica-log", extra=(*self._extra, *following)
        )
        self.replica_server.start()
        self.replica_server.wait_ready(READY_S)
        self.primary: Valkey = connect(self.primary_server.url)
        self.replica: Valkey = connect(self.replica_server.url)
        self.catch_up()
        return self

    def __exit__(self, *_: object) -> None:
        self.primary.close()
        self.replica.close()
        for server in (self.replica_server, self.primary_server):
            server.stop()

    def catch_up(self) -> None:
        """Wait until the replica has every write of the primary."""

        def is_level() -> bool:
            primary, replica = self.primary.info("replication"), self.replica.info("replication")
            linked = replica.get("master_link_status") == "up"
            return linked and replica["slave_repl_offset"] == primary["master_repl_offset"]

        wait_until(is_level, "the replica has caught up")

    def stop_replica(self) -> None:
        """From here on the replica takes nothing in; the primary believes it is there."""
        wait_until(
            lambda: not self.replica.info("persistence")["aof_rewrite_in_progress"], "the replica's file is whole"
        )
        os.kill(self.replica_server.child.pid, signal.SIGSTOP)

    def promote_stopped_replica(self) -> None:
        """Start the replica again as a primary, with what it had when it was stopped."""
        os.kill(self.replica_server.child.pid, signal.SIGKILL)
        wait_until(lambda: self.replica_server.child.exit_code() is not None, "the replica is dead")
        self.replica_server.stop()
        self.replica_server = EmbeddedValkey(self._folder / "replica", self._folder / "replica-log", extra=self._extra)
        self.replica_server.start()
        self.replica_server.wait_ready(READY_S)
        self.replica.close()
        self.replica = connect(self.replica_server.url)

    def cut_link(self) -> None:
        """From here on the replica misses what the primary writes."""
        self.replica.replicaof("NO", "ONE")

    def kill_primary(self) -> None:
        os.kill(self.primary_server.child.pid, signal.SIGKILL)
        wait_until(lambda: self.primary_server.child.exit_code() is not None, "the primary is dead")
