"""The same machine with clients that die: between commands, or before they have read an answer.

A lost answer is a real one: the command is sent and the connection closed at once. Whatever happened, at the end
of each example everything is drained, and every job that was accepted must be accounted for.
"""

from __future__ import annotations

import time
from typing import Any, TypeVar, cast

from hypothesis.stateful import rule

from headrace.model.event import Op
from headrace.model.job import JobState
from headrace.queue.state import read_states
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import ScriptCall
from tests.model.machine import SHARDS, Lost, QueueMachine, clients
from tests.model.valkey_contents import check, read_contents

T = TypeVar("T")

GONE_S = 120.0


class DyingClientsMachine(QueueMachine):
    @rule(client=clients)
    def an_answer_will_be_lost(self, client: int) -> None:
        self.loses.add(client)

    @rule(client=clients)
    def a_client_dies(self, client: int) -> None:
        """Replace the client by a new one. Jobs that the old one had leased have no worker."""
        self.leases[client] = []
        self.again[client] = lambda: None

    @rule(client=clients)
    def a_client_asks_again(self, client: int) -> None:
        """The same enqueue is accepted once, the same ack applied once, whether or not the first answer arrived."""
        self.again[client]()

    def run(self, client: int, call: ScriptCall[T]) -> T | Lost:
        if client not in self.loses:
            return super().run(client, call)
        self.loses.remove(client)
        hang_up(self.connections[client], self.valkey, call)
        return Lost.ANSWER

    def teardown(self) -> None:
        self.loses.clear()
        self.drain()
        super().teardown()

    def drain(self) -> None:
        """Take every brake off, let every lease end, work until nothing waits."""
        for ref in self.truth.queues:
            self.configure_queue(0, ref, paused=False, closed=False, limit=None)
        for env in self.truth.envs:
            self.configure_env(0, env, limit=None, burst=None)
        for job in [*self.truth.jobs.values()]:
            if job.state is JobState.RUNNING:
                self.ageing.end_lease(job)
            elif job.state is JobState.SCHEDULED:
                self.ageing.make_due(job)
        for shard in range(SHARDS):
            while self.truth.needs_maintenance(shard, self.now()):
                self.maintain(self.owners.get(shard, 0), shard, 1000)
            while self.truth.turns[shard]:
                self.leases[0] = []
                self.dequeue(0, shard, 50, ())
                self.report_done(0, shard, self.leases[0], keep=False, record=None)
            self.dequeue(0, shard, 50, ())
        check(self.valkey, self.truth)
        self.check_nothing_is_stranded()

    def check_nothing_is_stranded(self) -> None:
        assert all(job.state is JobState.DEAD for job in self.truth.jobs.values())
        for state in read_states(self.valkey, SHARDS):
            total = {op: state.odometers.get(op, 0) for op in Op}
            dead = total[Op.BURY] - total[Op.REDRIVE]
            assert (state.depth, state.scheduled, state.running, state.dead) == (0, 0, 0, dead)
            assert total[Op.ENQUEUE] == total[Op.ACK] + dead + total[Op.EXPIRE] + total[Op.CANCEL]
        indexes = {name.partition("}:")[2] for name in read_contents(self.valkey).sorted_sets}
        assert all(name.endswith(":dead") or name == "attempt_expiries" for name in indexes)


def hang_up(client: Valkey, observer: Valkey, call: ScriptCall[Any]) -> None:
    """Send a command and close the connection without reading. The server runs it before it notices."""
    connection = client.connection_pool.get_connection()
    try:
        connection.send_command("CLIENT", "ID")
        number = cast(int, connection.read_response())
        connection.send_command("EVAL", call.script.source, len(call.keys), *call.keys, *call.args)
        connection.disconnect()
    finally:
        client.connection_pool.release(connection)
    deadline = time.monotonic() + GONE_S
    while cast("list[Any]", observer.client_list(client_id=[str(number)])):
        assert time.monotonic() < deadline, "the server still knows the client"
