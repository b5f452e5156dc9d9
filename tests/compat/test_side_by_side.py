"""Workers, movers and producers of an older version work beside current ones on one Valkey and one PostgreSQL."""

from __future__ import annotations

import random
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace.cold.audit import Drift
from headrace.cold.tiers import Tiers
from headrace.model.event import Op
from headrace.model.names import EnvRef, QueueRef
from headrace.queue import keys
from headrace.queue.state import QueueState, read_states
from headrace.valkey.connect import Valkey, connect
from tests.chaos.tiers_judge import find_drift
from tests.compat.releases import CURRENT, Release, RemoteClient, extract_release
from tests.compat.side_by_side_tasks import EXECUTIONS, PARDON
from tests.compat.versions import VERSIONS
from tests.conftest import wait_until
from tests.model.fold import Fold, differences, read_envs, read_events

SHARDS = 2
WAIT_S = 300.0
PROGRESS = 20  # jobs that must be done by those that are left after a kill
DEAD_LEASE_MS = 200

ENV_0, ENV_1 = EnvRef("acme", "shop", "prod"), EnvRef("globex", "billing", "prod")  # one per shard
MAIL = QueueRef("acme", "shop", "prod", "mail")
NARROW = QueueRef("acme", "shop", "prod", "narrow")
CAPPED = QueueRef("globex", "billing", "prod", "capped")
MIXED = QueueRef("globex", "billing", "prod", "a,b:{c}")
QUEUES = (MAIL, NARROW, CAPPED, MIXED)
NARROW_LIMIT, CAP, ENV_LIMIT, BURST = 3, 20, 6, 1.5

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@dataclass
class Crew:
    """One worker and one mover per version. Their replacements after a kill keep the name."""

    releases: Sequence[Release]
    folder: Path
    env: dict[str, str]
    members: dict[str, subprocess.Popen[str]] = field(default_factory=dict[str, subprocess.Popen[str]])

    def start(self, role: str, release: Release) -> None:
        if role == "worker":
            command = ["-m", "headrace", "worker", "tests.compat.side_by_side_tasks:tasks", "--no-mover"]
        else:
            command = ["-m", "headrace", "mover"]
        name = f"{role}-{release.name}"
        self.members[name] = release.start(command, self.folder, name, self.env)

    def kill(self, role: str, release: Release) -> None:
        member = self.members.pop(f"{role}-{release.name}")
        assert member.poll() is None, self.logs()
        member.kill()
        member.wait()

    def stop(self) -> None:
        for member in self.members.values():
            member.send_signal(signal.SIGTERM)
        codes = {name: member.wait() for name, member in self.members.items()}
        # A replacement that is still starting has no handler for the signal yet.
        assert set(codes.values()) <= {0, -signal.SIGTERM}, f"{codes}\n{self.logs()}"

    def kill_all(self) -> None:
        for member in self.members.values():
            member.kill()
            member.wait()

    def wait_until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait; if it takes too long, fail with the logs of the crew."""
        try:
            wait_until(condition, what, WAIT_S, 0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def logs(self) -> str:
        return "\n".join(f"{path.name}:\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.log")))


@dataclass
class Producers:
    """Clients of both versions that ask in turns, and what they were answered."""

    clients: dict[str, RemoteClient]
    dice: random.Random = field(default_factory=random.Random)
    accepted: set[str] = field(default_factory=set[str])
    doomed: list[str] = field(default_factory=list[str])
    cancelled: set[str] = field(default_factory=set[str])

    def enqueue(self, turn: int) -> None:
        """Enqueue jobs of every kind from every version, and the same ids from all of them at once."""
        for name, client in self.clients.items():
            prefix = f"{name}-{turn}"
            self._accept(client, MAIL, [job("quick" if n % 3 else "blocking", f"{prefix}-m{n}") for n in range(150)])
            self._accept(client, CAPPED, [job("quick", f"{prefix}-c{n}", priority=n % 2) for n in range(60)])
            self._accept(client, NARROW, [job("slow", f"{prefix}-n{n}") for n in range(8)])
            self._accept(client, MIXED, [self._mixed(f"{prefix}-x{n}") for n in range(25)])
            doomed = [f"{prefix}-d{n}" for n in range(2)]
            self._accept(client, MIXED, [job("doomed", job_id, max_attempts=5) for job_id in doomed])
            self.doomed += doomed
            self._cancel(client, f"{prefix}-gone")
        self._share([f"shared-{turn}-{n}" for n in range(10)])

    def _accept(self, client: RemoteClient, ref: QueueRef, jobs: Sequence[dict[str, Any]]) -> None:
        assert all(client.enqueue_many(ref, jobs))
        self.accepted.update(each["id"] for each in jobs)

    def _mixed(self, job_id: str) -> dict[str, Any]:
        kind = self.dice.choice(("flaky", "delayed", "ttl", "large"))
        match kind:
            case "delayed":
                return job("quick", job_id, delay_ms=self.dice.randint(1, 1000))
            case "ttl":
                return job("quick", job_id, ttl_ms=3_600_000)
            case "large":
                return job("quick", job_id, payload="x" * 20_000, flow="import", flow_type="TRANSFORM")
            case _:
                return job("flaky", job_id)

    def _cancel(self, client: RemoteClient, job_id: str) -> None:
        """Cancel a job through a client of another version."""
        assert client.enqueue_many(MIXED, [job("quick", job_id, delay_ms=50_000)]) == [True]
        other = next(each for each in self.clients.values() if each is not client)
        assert other.ask("state", MIXED, id=job_id) == "scheduled"
        assert other.ask("cancel", MIXED, id=job_id) == "scheduled"
        assert client.ask("state", MIXED, id=job_id) is None
        self.cancelled.add(job_id)

    def _share(self, ids: Sequence[str]) -> None:
        answers = [client.enqueue_many(MAIL, [job("quick", each) for each in ids]) for client in self.clients.values()]
        assert [sum(flags) for flags in zip(*answers, strict=True)] == [1] * len(ids)
        self.accepted.update(ids)

    def ask_again(self) -> None:
        """The ids of jobs that are done stay taken, with either version."""
        ids = sorted(each for each in self.accepted if "-m" in each or each.startswith("shared-"))
        for client in self.clients.values():
            assert not any(client.enqueue_many(MAIL, [job("quick", each) for each in ids]))


def job(task: str, job_id: str, payload: str = "ü", max_attempts: int = 1000, **fields: Any) -> dict[str, Any]:
    """A kill costs an attempt, and no job may die of that: so there are many."""
    return {"task": task, "id": job_id, "payload": payload, "max_attempts": max_attempts, **fields}


@pytest.fixture(params=VERSIONS.values())
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Release:
    return extract_release(request.param, tmp_path / "source")


@contextmanager
def running_clients(
    releases: Sequence[Release], folder: Path, valkey_url: str, postgres_url: str
) -> Generator[dict[str, RemoteClient]]:
    clients = {each.name: RemoteClient(each, folder, valkey_url, postgres_url) for each in releases}
    try:
        yield clients
    finally:
        for client in clients.values():
            client.close()


@pytest.fixture
def crew(old: Release, tmp_path: Path, valkey_url: str, postgres_url: str) -> Iterator[Crew]:
    env = {
        "HEADRACE_REDIS_URL": valkey_url,
        "HEADRACE_POSTGRES_URL": postgres_url,
        "HEADRACE_QUEUE_LEASE": "6s",
        "HEADRACE_QUEUE_KEEP_DONE": "1d",
        "HEADRACE_QUEUE_RETRY_BASE": "10ms",
        "HEADRACE_WORKER_HEARTBEAT": "1s",
        "HEADRACE_WORKER_POLL": "50ms",
        "HEADRACE_COLD_REFILL_EVERY": "500ms",
        "HEADRACE_COLD_AUDIT_EVERY": "2s",
        "HEADRACE_COLD_LEASE": "11s",
        EXECUTIONS: str(tmp_path / "executions"),
        PARDON: str(tmp_path / "pardon"),
    }
    (tmp_path / "executions").touch()
    crew = Crew((old, CURRENT), tmp_path, env)
    yield crew
    crew.kill_all()


def test_an_older_version_beside_the_current_one_loses_no_job_and_runs_none_twice(
    crew: Crew, old: Release, tmp_path: Path, valkey_url: str, postgres_url: str
) -> None:
    with (
        running_clients(crew.releases, tmp_path, valkey_url, postgres_url) as clients,
        connect(valkey_url) as valkey,
    ):
        producers = Producers(clients)
        open_queues(producers, old)
        for release in crew.releases:
            crew.start("worker", release)
            crew.start("mover", release)
        for turn, (role, release) in enumerate((role, each) for role in ("worker", "mover") for each in crew.releases):
            producers.enqueue(turn)
            crew.wait_until(lambda: total(valkey, Op.ACK) and total(valkey, Op.SPILL), "jobs are done and spilled")
            crew.kill(role, release)
            if role == "mover":
                end_leases(valkey)
            check_others_go_on(crew, producers, valkey, role, turn)
            crew.start(role, release)
        settle(crew, valkey, dead=len(producers.doomed))
        producers.ask_again()
        pardon(crew, producers)
        settle(crew, valkey, dead=0)
        crew.stop()
        judge(producers, crew, valkey, valkey_url, postgres_url)


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_a_missing_history_skips_and_fails_in_ci(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="history has no"):
        extract_release("0" * 40, tmp_path)


def open_queues(producers: Producers, old: Release) -> None:
    """Make every queue with a job of its own, and settings from both versions before the first worker starts."""
    first, second = producers.clients[old.name], producers.clients[CURRENT.name]
    for number, (ref, client) in enumerate(zip(QUEUES, (first, second, first, second), strict=True)):
        assert client.enqueue_many(ref, [job("quick", f"first-{number}")]) == [True]
        producers.accepted.add(f"first-{number}")
    first.ask("limits", NARROW, limit=NARROW_LIMIT)
    second.ask("caps", CAPPED, items=CAP)
    first.ask("env_limits", MIXED, limit=ENV_LIMIT, burst=BURST)
    second.ask("pause", MAIL, paused=True)
    first.ask("pause", MAIL, paused=False)


def check_others_go_on(crew: Crew, producers: Producers, valkey: Valkey, role: str, turn: int) -> None:
    """The member that is left does the work of both: a worker runs jobs, a mover refills."""
    op = Op.ACK if role == "worker" else Op.REFILL
    before = total(valkey, op)
    producers.enqueue(100 + turn)
    crew.wait_until(lambda: total(valkey, op) >= before + PROGRESS, f"the other {role} goes on")


def end_leases(valkey: Valkey) -> None:
    """Let the leases of movers end now, as they would some seconds later."""
    for shard in range(SHARDS):
        valkey.pexpire(keys.mover(shard), DEAD_LEASE_MS)


def total(valkey: Valkey, op: Op) -> int:
    return sum(state.odometers.get(op, 0) for state in read_states(valkey, SHARDS))


def settle(crew: Crew, valkey: Valkey, dead: int) -> None:
    def is_settled() -> bool:
        states = read_states(valkey, SHARDS)
        return not any(map(is_busy, states)) and sum(state.dead for state in states) == dead

    crew.wait_until(is_settled, "every job has ended")


def is_busy(state: QueueState) -> bool:
    return bool(state.depth or state.scheduled or state.running or state.cold_mode)


def pardon(crew: Crew, producers: Producers) -> None:
    """Redrive the dead jobs, one part through each version."""
    Path(crew.env[PARDON]).touch()
    clients = list(producers.clients.values())
    for number, client in enumerate(clients):
        ids = producers.doomed[number :: len(clients)]
        assert client.ask("redrive", MIXED, ids=ids) == len(ids)


def judge(producers: Producers, crew: Crew, valkey: Valkey, valkey_url: str, postgres_url: str) -> None:
    lines = [line.split("\t") for line in Path(crew.env[EXECUTIONS]).read_text().splitlines()]
    assert {job_id for job_id, *_ in lines} == producers.accepted
    assert {Path(source).parents[1] for *_, source in lines} == {each.source for each in crew.releases}
    # A job that came twice would begin with its first attempt twice; one whose lease was lost has a further attempt.
    attempts = Counter((job_id, life, attempt) for job_id, life, attempt, _ in lines)
    assert [run for run, times in attempts.items() if times > 1] == []
    counts = {op: total(valkey, op) for op in Op}
    applied = counts[Op.ACK] + counts[Op.NACK] + counts[Op.BURY]
    assert len(lines) - applied <= counts[Op.RECLAIM], counts
    assert counts[Op.ACK] == len(producers.accepted)
    assert counts[Op.ENQUEUE] == len(producers.accepted | producers.cancelled)
    assert counts[Op.CANCEL] == len(producers.cancelled)
    assert (counts[Op.BURY], counts[Op.REDRIVE]) == (len(producers.doomed), len(producers.doomed))
    assert (counts[Op.EXPIRE], counts[Op.SPILL] + counts[Op.REDRIVE]) == (0, counts[Op.REFILL])
    tiers = Tiers(valkey_url, postgres_url)
    try:
        assert [find_drift(valkey, tiers, shard) for shard in range(SHARDS)] == [Drift()] * SHARDS
    finally:
        tiers.close()
    check_events(valkey)


def check_events(valkey: Valkey) -> None:
    """The metric events of both versions, added up, are the queues' own numbers, and no event shows a limit passed."""
    states = read_states(valkey, SHARDS)
    for shard, env in enumerate((ENV_0, ENV_1)):
        assert env.shard(SHARDS) == shard
        fold = Fold(bursts={ENV_1: BURST}).add(read_events(valkey, shard))
        own = [state for state in states if state.ref.environment == env]
        assert differences(fold, own, read_envs(valkey, shard, [env])) == []
        assert fold.over_limit == 0
