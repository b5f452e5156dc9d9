"""Servers that go back in time: Valkey with a replica that is promoted, PostgreSQL that is restored from a copy, and a
cluster whose slots move."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.crc import key_slot

from headrace.embedded.credentials import FILE
from headrace.embedded.data_directory import write_json
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.process import LOOPBACK, choose_port
from headrace.embedded.valkey import SUPERVISOR, USER, EmbeddedValkey
from headrace.errors import EmbeddedError
from headrace.queue import keys
from headrace.valkey.connect import connect
from tests.chaos.relay import Relay
from tests.valkey_cluster import EmbeddedValkeyCluster

READY_S = 180.0
POLL_S = 0.02


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def wait_for(condition: Callable[[], bool], what: str, seconds: float = READY_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {seconds:g} s")
        time.sleep(POLL_S)


@dataclass(frozen=True)
class LossWindow:
    """The time span in which accepted jobs may be lost, by the documented promise of the server that went back."""

    server: str
    from_ms: int
    until_ms: int


PASSWORDS = {USER: "of-all-servers", SUPERVISOR: "of-all-servers-too"}


class ReplicatedValkey:
    """A primary and its replica behind one address. Replication passes a relay, so that the replica can be behind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0
        self._link = Relay()
        self._front = Relay()
        self.url = f"redis://{USER}:{PASSWORDS[USER]}@{LOOPBACK}:{self._front.port}/0"
        self.primary = self._start()
        self.replica = self._attach()
        self._front.point_at(self.primary.port)

    def fail_over(self, behind_s: float) -> LossWindow:
        """Kill the primary with SIGKILL and promote its replica, which has seen nothing for the last `behind_s`."""
        held_ms = now_ms()
        self._link.hold()
        time.sleep(behind_s)
        kill_server(self.primary)
        self._front.point_at(None)
        self._link.point_at(None)  # what was held back never arrives
        with connect(self.replica.url) as client:
            client.execute_command("REPLICAOF", "NO", "ONE")
        window = LossWindow("valkey", held_ms, now_ms())
        self.primary = self.replica
        self._front.point_at(self.primary.port)
        self.replica = self._attach()
        return window

    def stop(self) -> None:
        self._front.close()
        self._link.close()
        for server in (self.replica, self.primary):
            server.stop()

    def _start(self) -> EmbeddedValkey:
        self._made += 1
        own = self._folder / f"valkey-{self._made}"
        own.mkdir(parents=True)
        write_json(own / FILE, PASSWORDS)  # clients keep theirs when a replica takes over
        following = ("--masteruser", USER, "--masterauth", PASSWORDS[USER])
        server = EmbeddedValkey(own, own / "log", extra=("--repl-diskless-sync-delay", "0", *following))
        server.start()
        server.wait_ready(READY_S)
        return server

    def _attach(self) -> EmbeddedValkey:
        replica = self._start()
        self._link.point_at(self.primary.port)
        with connect(replica.url) as client:
            client.execute_command("REPLICAOF", LOOPBACK, self._link.port)
            wait_for(lambda: _is_in_sync(client), "the replica follows its primary")
        return replica


def _is_in_sync(client: Any) -> bool:
    return client.info("replication").get("master_link_status") == "up"


class RestorablePostgres:
    """PostgreSQL behind one address, which can be put back to the state of its last backup."""

    def __init__(self, folder: Path) -> None:
        self._backup = folder / "postgres-backup"
        self._server = EmbeddedPostgres(folder / "postgres", folder, choose_port("postgres", 0))
        self._backed_up_ms = 0
        self._start()

    @property
    def url(self) -> str:
        return self._server.url

    def back_up(self) -> None:
        """Copy the files of the stopped server: the same cluster on the same timeline, as a disk snapshot gives it."""
        self._server.stop()
        shutil.rmtree(self._backup, ignore_errors=True)
        _copy(self._server.cluster_dir, self._backup)
        self._backed_up_ms = now_ms()
        self._start()

    def restore(self) -> LossWindow:
        window = LossWindow("postgres", self._backed_up_ms, now_ms())
        kill_server(self._server)
        shutil.rmtree(self._server.cluster_dir)
        _copy(self._backup, self._server.cluster_dir)
        self._start()
        return LossWindow("postgres", window.from_ms, now_ms())

    def stop(self) -> None:
        self._server.stop()

    def _start(self) -> None:
        deadline = time.monotonic() + READY_S
        while True:  # a killed server's children need a moment to end
            try:
                self._server.start()
                self._server.wait_ready(READY_S)
                return
            except EmbeddedError:
                self._server.stop()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)


def _copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)  # owners and modes too


def kill_server(server: EmbeddedValkey | EmbeddedPostgres) -> None:
    os.kill(server.child.pid, signal.SIGKILL)
    server.stop()


@dataclass
class MovingCluster:
    """A cluster whose nodes go away and whose slots move while it is used."""

    cluster: EmbeddedValkeyCluster
    ports: list[int] = field(default_factory=list[int])

    @classmethod
    def start(cls, folder: Path) -> MovingCluster:
        cluster = EmbeddedValkeyCluster(folder / "cluster", folder / "cluster-log")
        cluster.start()
        cluster.wait_ready(READY_S)
        for node in cluster.nodes:
            with connect(node.url) as client:
                # The slots of healthy nodes are served while another node is away.
                client.execute_command("CONFIG", "SET", "cluster-require-full-coverage", "no")
        return cls(cluster, [node.port for node in cluster.nodes])

    def find_node_number(self, shard: int) -> int:
        """Return the number of the node that serves a shard."""
        slot = compute_slot(shard)
        with connect(self.cluster.nodes[0].url) as client:
            ranges: Any = client.execute_command("CLUSTER", "SLOTS")
        for first, last, owner, *_ in _slot_ranges(ranges):
            if first <= slot <= last:
                return self.ports.index(owner)
        raise RuntimeError(f"no node serves slot {slot}")

    def _login(self) -> tuple[str, str, str]:
        return "AUTH2", USER, self.cluster.nodes[0].passwords[USER]

    def kill(self, number: int) -> None:
        kill_server(self.cluster.nodes[number])

    def restart(self, number: int) -> None:
        """On its own port, with its own files."""
        old = self.cluster.nodes[number]
        node = EmbeddedValkey(
            old.data_dir,
            old.log_file.parent,
            self.ports[number],
            extra=("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"),
        )
        node.start()
        node.wait_ready(READY_S)
        self.cluster.nodes[number] = node
        wait_for(self._agrees, "the cluster is complete again")

    def move_shard(self, shard: int, batch: int = 50, pause_s: float = 0.02) -> int:
        """Migrate the slot of a shard to the next node, key by key, while it is used. Returns how many keys moved."""
        slot, source = compute_slot(shard), self.find_node_number(shard)
        target = (source + 1) % len(self.ports)
        ids = [self._id(number) for number in range(len(self.ports))]
        with connect(self._url(source)) as giver, connect(self._url(target)) as taker:
            taker.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
            giver.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
            moved = 0
            while names := giver.execute_command("CLUSTER", "GETKEYSINSLOT", slot, batch):
                giver.execute_command(
                    *("MIGRATE", LOOPBACK, self.ports[target], "", 0, 60_000, "REPLACE", *self._login(), "KEYS", *names)
                )
                moved += len(names)
                time.sleep(pause_s)
            for client in (taker, giver):
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[target])
        for number in range(len(self.ports)):
            if number not in (source, target):
                with connect(self._url(number)) as client:
                    client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[target])
        return moved

    def stop(self) -> None:
        self.cluster.stop()

    def _url(self, number: int) -> str:
        return self.cluster.nodes[number].url

    def _id(self, number: int) -> str:
        with connect(self._url(number)) as client:
            found: Any = client.execute_command("CLUSTER", "MYID")
        return found.decode() if isinstance(found, bytes) else str(found)

    def _agrees(self) -> bool:
        for number in range(len(self.ports)):
            with connect(self._url(number)) as client:
                state: Any = client.execute_command("CLUSTER", "INFO")
            text = state if isinstance(state, dict) else _fields(state)
            if text["cluster_state"] != "ok" or text["cluster_slots_fail"] != "0":
                return False
        return True


def compute_slot(shard: int) -> int:
    """Return the cluster slot that has all keys of a shard."""
    return key_slot(keys.meta(shard).encode())


def _fields(text: bytes | str) -> dict[str, str]:
    lines = (text.decode() if isinstance(text, bytes) else text).splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _slot_ranges(answer: Any) -> list[tuple[Any, ...]]:
    """(first, last, port of the owner). redis-py answers CLUSTER SLOTS as a list or a dictionary."""
    if isinstance(answer, dict):
        return [(*bounds, found["primary"][1]) for bounds, found in answer.items()]
    return [(int(first), int(last), int(owner[1])) for first, last, owner, *_ in answer]
