"""The autoscaler on real servers: what it sees, who may decide, and what is kept."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from headrace.autoscale import records
from headrace.autoscale.decide import Observation, ScalingVerb, estimate_demand
from headrace.autoscale.lease import AutoscalerFenced
from headrace.autoscale.observer import DueTimes, LoadObserver
from headrace.autoscale.stream_observer import StreamObserver
from headrace.autoscale.worker_types import Scaling, WorkerType
from headrace.cli.main import headrace
from headrace.errors import DatabaseUnavailable
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.postgres.connect import Pool, connect, open_pool, transaction
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.scripts import WarmCaps
from headrace.queue.state import read_states
from headrace.streams.keys import GroupKeys
from headrace.streams.scripts import GroupStubs
from headrace.valkey.connect import Valkey, read_server_time_ms
from headrace.valkey.connect import connect as connect_valkey
from headrace.valkey.scripts import run
from tests.autoscaling import NOBODY, REF, Autoscaling, ManualActuator, mail
from tests.conftest import wait_until
from tests.operating import World, open_world


@pytest.fixture
def pool(postgres_url: str) -> Iterator[Pool]:
    with open_pool(postgres_url) as made:
        yield made


@pytest.fixture
def world(valkey_url: str, postgres_url: str) -> Iterator[World]:
    with open_world(valkey_url, postgres_url) as made:
        yield made


@pytest.fixture
def mails(pool: Pool, valkey_url: str) -> Autoscaling:
    made = Autoscaling(pool, valkey_url, [mail()])
    made.lease.acquire()
    return made


def stored(pool: Pool, name: str = "mail") -> list[records.StoredDecision]:
    with transaction(pool) as conn:
        return records.list_decisions(conn, name)


# --- What is seen ----------------------------------------------------------------------------------


def test_arrivals_service_times_and_depth_are_seen(world: World, mails: Autoscaling) -> None:
    mails.observe_and_decide()
    world.enqueue(REF, 100)
    held = world.dequeue(REF, 40)
    mails.observe_and_decide(10)
    stubs = QueueOptions().make_stubs()
    run(world.queue.redis, stubs.ack(stubs.find_shard(REF), [(job, 1) for job in held[:20]], 1000))
    made = mails.observe_and_decide(10)
    [source] = made.inputs["sources"]
    assert (source["depth"], source["running"]) == (60, 20)
    assert source["arrivals_per_s"] == pytest.approx(100 / 20)
    # 0 ran, then 40, then 20: 25 on average over 20 s, in which 20 ended.
    assert source["service_s"] == pytest.approx(25 * 20 / 20)
    assert (made.verb, made.known) == (ScalingVerb.UP, True)


def test_jobs_that_wait_in_postgres_count(valkey_url: str, postgres_url: str, pool: Pool) -> None:
    from headrace.cold.tiers import Tiers

    options = QueueOptions(caps=WarmCaps(10, 2**20, 0))
    tiers = Tiers(valkey_url, postgres_url, options)
    with SyncClient(valkey_url, options, tiers) as queue:
        queue.enqueue_many(REF, [NewJob(id=f"job-{number}", task="t", payload=b"") for number in range(600)])
    tiers.close()
    seen = Autoscaling(pool, valkey_url, [mail()])
    seen.lease.acquire()
    seen.observe_and_decide()
    made = seen.observe_and_decide()
    [source] = made.inputs["sources"]
    assert (source["depth"], source["cold"]) == (600, 590)
    assert made.wanted == 1, "600 jobs of an assumed second within a minute are ten at a time"


QUICK_DOWN = Scaling(max=20, lead_s=10.0, down_cooldown_s=0.0, settle_s=0.0)


@pytest.mark.parametrize("delay_ms", [50_000, 3_600_000])
def test_a_scheduled_job_is_seen_before_it_is_due(
    world: World, pool: Pool, valkey: Valkey, valkey_url: str, delay_ms: int
) -> None:
    """In Valkey, and in PostgreSQL where jobs wait that are delayed by more. Ten seconds pass between two decisions,
    and a worker starts within ten."""
    world.enqueue(REF, 1, delay_ms=delay_ms)
    [state] = read_states(valkey, 2)
    assert (state.scheduled, state.cold_scheduled) == (1, 0 if delay_ms < 60_000 else 1)
    [info] = [world.queue.get(REF.environment, "job-0")]
    assert info is not None
    assert info.due_at_ms is not None
    mails = Autoscaling(pool, valkey_url, [mail(scaling=QUICK_DOWN)])
    mails.lease.acquire()
    mails.now_ms = info.due_at_ms - 60_000
    mails.observe_and_decide(0)
    assert mails.observe_and_decide(30).sentence == "Lowered from 1 to 0: no load"
    made = mails.observe_and_decide(12)  # 18 s before it is due
    assert made.sentence == "Raised from 0 to 1: 0 waiting, 0 running, 0/s arriving, 1 due within 20 s"
    assert made.inputs["sources"][0]["due_soon"] == 1


def test_due_times_are_unknown_while_postgres_is_down(world: World, valkey_url: str) -> None:
    def refuse(_: float) -> DueTimes:
        raise DatabaseUnavailable

    world.enqueue(REF, 1, delay_ms=3_600_000)
    observer = LoadObserver(lambda: connect_valkey(valkey_url), 2, read_cold_due=refuse)
    observer.observe([mail()], {}, 0)
    seen = observer.observe([mail()], {}, 10_000)["mail"]
    assert seen.unknown_reason == "due times of queue emails in PostgreSQL"


def test_jobs_that_wait_for_too_long_double_the_demand(world: World, mails: Autoscaling) -> None:
    mails.observe_and_decide()
    world.enqueue(REF, 5000)
    assert not mails.observe_and_decide().inputs["too_old"]
    after = mails.observe_and_decide(50)
    assert after.inputs["sources"][0]["age_s"] > 30
    assert after.inputs["too_old"]
    assert after.inputs["slots"] == pytest.approx(2 * (5000 / 60 + 5000 / 60 / 0.8))
    assert "more than 30 s: demand doubled" in after.sentence


def test_limits_and_pauses_are_seen(world: World, mails: Autoscaling) -> None:
    other = QueueRef(REF.org, REF.project, REF.env, "other")
    world.enqueue(other, 5, "other-")
    world.dequeue(other, 5)
    world.enqueue(REF, 5000)
    mails.observe_and_decide()
    assert mails.observe_and_decide().wanted == 9
    world.queue.limits(REF.environment, 30)
    made = mails.observe_and_decide()
    assert made.inputs["rooms"] == {"acme / shop / prod": 25}
    assert made.inputs["allowed"] == 25
    world.queue.pause(REF)
    made = mails.observe_and_decide()
    assert (made.inputs["sources"][0]["paused"], made.inputs["allowed"]) == (True, 0)


def test_other_tenants_and_queues_do_not_count(world: World, mails: Autoscaling) -> None:
    for ref in (QueueRef("globex", "shop", "prod", "emails"), QueueRef("acme", "shop", "prod", "images")):
        world.enqueue(ref, 500, f"{ref.org}-{ref.queue}-")
    mails.observe_and_decide()
    assert mails.observe_and_decide().sentence == "Kept at 0: no load"


def test_decisions_hold_while_valkey_is_down(world: World, mails: Autoscaling, pool: Pool) -> None:
    world.enqueue(REF, 5000)
    mails.observe_and_decide()
    assert mails.observe_and_decide().wanted == 9
    away = Autoscaling(pool, NOBODY, [mail()])
    away.lease = mails.lease
    away.scaler._lease = mails.lease  # pyright: ignore[reportPrivateUsage]
    for _ in range(3):
        made = away.observe_and_decide(600)
        assert (made.verb, made.wanted, made.known) == (ScalingVerb.HOLD, 9, False)
        assert "state of the queues (Valkey does not answer) unknown since" in made.sentence


def test_an_observer_of_other_shards_does_not_report_partial_data_as_complete(
    world: World, pool: Pool, valkey_url: str
) -> None:
    world.enqueue(REF, 500)
    partial = Autoscaling(pool, valkey_url, [mail()], shards=1)
    partial.lease.acquire()
    partial.observe_and_decide()
    made = partial.observe_and_decide()
    assert (made.wanted, made.known) == (1, False)
    assert "state of the queues (queue.shards differs from the server's) unknown since" in made.sentence


def test_valkey_down_from_the_start_means_one_worker(pool: Pool) -> None:
    away = Autoscaling(pool, NOBODY, [mail()])
    away.lease.acquire()
    assert away.observe_and_decide().wanted == 1


# --- Streams ---------------------------------------------------------------------------------------

JOBS = WorkerType("jobs", stream="jobs", group="workers", scaling=Scaling(max=20, per_worker=1))


def test_a_stream_counts_what_is_undelivered_and_pending(valkey: Valkey, valkey_url: str, pool: Pool) -> None:
    valkey.xgroup_create("jobs", "workers", id="0", mkstream=True)
    jobs = Autoscaling(pool, valkey_url, [JOBS])
    jobs.lease.acquire()
    jobs.observe_and_decide()
    for _ in range(300):
        valkey.xadd("jobs", {"json": "{}"})
    valkey.xreadgroup("workers", "one", {"jobs": ">"}, count=60)
    made = jobs.observe_and_decide()
    [source] = made.inputs["sources"]
    assert (source["depth"], source["running"], source["arrivals_per_s"]) == (240, 60, 30.0)
    assert made.verb == ScalingVerb.UP
    assert source["unknown"] == ""


def test_entries_that_wait_for_their_retry_hold_no_slots(valkey: Valkey, valkey_url: str, pool: Pool) -> None:
    """While a service that jobs need is down, all of them fail and wait; more workers would have nothing to do."""
    valkey.xgroup_create("jobs", "workers", id="0", mkstream=True)
    keys = GroupKeys("jobs", "workers")
    stubs, retries = GroupStubs(keys, "headrace:one"), keys.list_all()[1]
    for _ in range(300):
        valkey.xadd("jobs", {"json": "{}"})
    run(valkey, stubs.nack((each, 3_600_000) for each in run(valkey, stubs.dequeue(300)).entries))
    jobs = Autoscaling(pool, valkey_url, [JOBS])
    jobs.lease.acquire()
    made = [jobs.observe_and_decide() for _ in range(20)]
    [source] = made[-1].inputs["sources"]
    assert (source["depth"], source["running"], source["scheduled"]) == (0, 0, 300)
    assert {each.wanted for each in made} == {1}  # and not none: there is work
    assert made[-1].sentence == "Kept at 1: 0 waiting, 0 running, 0/s arriving, 300 awaiting retry"
    valkey.zadd(retries, dict.fromkeys(cast("list[bytes]", valkey.zrange(retries, 0, -1)), 1))  # their time comes
    due = jobs.observe_and_decide()
    [source] = due.inputs["sources"]
    assert (source["depth"], source["scheduled"], source["arrivals_per_s"]) == (300, 0, 5.0)  # in a minute
    assert due.verb == ScalingVerb.UP


HOUR_MS = 3_600_000


def observe_stream(valkey_url: str, pool: Pool) -> Any:
    """Return the inputs of a decision about JOBS by the real observer, with known rates."""
    jobs = Autoscaling(pool, valkey_url, [JOBS])
    jobs.lease.acquire()
    jobs.observe_and_decide(0)
    inputs = jobs.observe_and_decide().inputs
    jobs.lease.release()
    return inputs


def test_undelivered_entries_that_wait_for_too_long_double_the_demand(
    valkey: Valkey, valkey_url: str, pool: Pool
) -> None:
    valkey.xgroup_create("jobs", "workers", id="0", mkstream=True)
    added_ms = read_server_time_ms(valkey) - HOUR_MS
    for number in range(600):
        valkey.xadd("jobs", {"json": "{}"}, id=f"{added_ms}-{number + 1}")
    old = observe_stream(valkey_url, pool)
    assert old["sources"][0]["age_s"] >= 3600
    assert (old["too_old"], old["slots"]) == (True, pytest.approx(20))
    valkey.delete("jobs")
    valkey.xgroup_create("jobs", "workers", id="0", mkstream=True)
    ahead_ms = read_server_time_ms(valkey) + HOUR_MS  # however slow the machine is, these are not old
    for number in range(600):
        valkey.xadd("jobs", {"json": "{}"}, id=f"{ahead_ms}-{number + 1}")
    new = observe_stream(valkey_url, pool)
    assert (new["too_old"], new["slots"]) == (False, pytest.approx(10))


@pytest.mark.parametrize(
    ("ours", "idle_s", "gone"),
    [(True, 3600, True), (True, 20, False), (False, 3600, True), (False, 100, False)],
    ids=["lease-ended", "lease-held", "stuck", "no-heartbeats"],
)
def test_entries_of_a_consumer_that_is_gone_count_as_waiting_for_the_age_rule(
    valkey: Valkey, valkey_url: str, ours: bool, idle_s: int, gone: bool
) -> None:
    """All entries were delivered: without their consumers nothing waits, and nothing runs either."""
    valkey.xgroup_create("jobs", "workers", id="0", mkstream=True)
    for _ in range(5):
        valkey.xadd("jobs", {"json": "{}"})
    if ours:
        run(valkey, GroupStubs(GroupKeys("jobs", "workers"), "headrace:one").dequeue(5))
    else:
        valkey.xreadgroup("workers", "headrace:one", {"jobs": ">"}, count=5)
    entries: Any = valkey.xrange("jobs")
    held = [entry_id for entry_id, _ in entries]
    # The limits leave a slow machine ten minutes.
    observer = StreamObserver(lambda: connect_valkey(valkey_url), lease_s=700.0, stuck_after_s=800.0)
    valkey.xclaim("jobs", "workers", "headrace:one", 0, held[2:3], idle=idle_s * 1000, justid=True)
    [source] = observer.observe(JOBS, None, read_server_time_ms(valkey)).sources
    assert (source.depth, source.running) == (0, 5)
    assert (source.age_s is not None) == gone
    assert estimate_demand(JOBS.scaling, Observation([source])).too_old == gone


def test_a_consumer_that_is_gone_is_seen_behind_many_older_retries(valkey: Valkey, valkey_url: str) -> None:
    valkey.xgroup_create("jobs", "workers", id="0", mkstream=True)
    one, two = (GroupStubs(GroupKeys("jobs", "workers"), f"headrace:{name}") for name in ("one", "two"))
    for _ in range(201):
        valkey.xadd("jobs", {"json": "{}"})
    run(valkey, one.nack((each, HOUR_MS) for each in run(valkey, one.dequeue(200)).entries))
    observer = StreamObserver(lambda: connect_valkey(valkey_url), lease_s=0.0)
    [before] = observer.observe(JOBS, None, read_server_time_ms(valkey)).sources
    assert (before.scheduled, before.running) == (200, 0)
    run(valkey, two.dequeue(1))
    [source] = observer.observe(JOBS, None, read_server_time_ms(valkey)).sources
    assert (source.depth, source.running) == (0, 1)
    assert source.age_s is not None


def test_a_stream_that_may_not_be_read_holds_and_stops_no_other_type(
    valkey: Valkey, valkey_url: str, pool: Pool
) -> None:
    valkey.acl_setuser("few", enabled=True, passwords=["+pw"], categories=["+@all"], keys=["hr:*"])
    try:
        types = [JOBS, mail()]
        both = Autoscaling(pool, re.sub("//.*@", "//few:pw@", valkey_url), types)
        both.lease.acquire()
        made = both.observe_and_decide()
    finally:
        valkey.acl_deluser("few")
    assert (made.wanted, made.known) == (1, False)
    assert "lag of group workers (the server returned an error) unknown since" in made.sentence
    assert [each.known for each in stored(pool, "mail")] == [True]


def test_an_unknown_lag_holds(valkey: Valkey, valkey_url: str, pool: Pool) -> None:
    ids: list[Any] = [valkey.xadd("jobs", {"json": "{}"}) for _ in range(30)]
    valkey.xgroup_create("jobs", "workers", id=ids[14])
    valkey.xdel("jobs", ids[20])
    jobs = Autoscaling(pool, valkey_url, [JOBS], count_bound=5)
    jobs.lease.acquire()
    for _ in range(3):
        made = jobs.observe_and_decide(600)
        assert (made.wanted, made.known) == (1, False)
        assert "lag of group workers unknown since" in made.sentence
    exact = Autoscaling(pool, valkey_url, [JOBS], count_bound=100)
    exact.lease = jobs.lease
    exact.scaler._lease = jobs.lease  # pyright: ignore[reportPrivateUsage]
    exact.observe_and_decide()
    assert exact.observe_and_decide().inputs["sources"][0]["depth"] == 14


def test_a_group_or_stream_that_does_not_exist_is_not_zero(valkey: Valkey, valkey_url: str, pool: Pool) -> None:
    jobs = Autoscaling(pool, valkey_url, [JOBS])
    jobs.lease.acquire()
    made = jobs.observe_and_decide()
    assert (made.wanted, made.known) == (1, False)
    assert "there is no such group" in made.sentence
    valkey.set("jobs", "text")
    made = jobs.observe_and_decide()
    assert (made.wanted, made.known) == (1, False)
    assert "the key is not a stream" in made.sentence


# --- One decides -----------------------------------------------------------------------------------


def test_of_two_autoscalers_one_acts(world: World, pool: Pool, valkey_url: str) -> None:
    hands = [ManualActuator(), ManualActuator()]
    first, second = (Autoscaling(pool, valkey_url, [mail()], {"mail": hand}) for hand in hands)
    world.enqueue(REF, 5000)
    assert [first.lease.acquire(), second.lease.acquire()] == [True, False]
    for _ in range(3):
        first.observe_and_decide()
        with pytest.raises(AutoscalerFenced):
            second.observe_and_decide()
    assert hands[0].told[-1] == 9
    assert hands[1].told == []
    assert len(stored(pool)) == 3


def test_the_next_one_goes_on_where_the_first_ended(world: World, pool: Pool, valkey_url: str) -> None:
    hand = ManualActuator()
    first, second = (Autoscaling(pool, valkey_url, [mail()], {"mail": each}) for each in (ManualActuator(), hand))
    world.enqueue(REF, 5000)
    first.lease.acquire()
    first.observe_and_decide()
    first.observe_and_decide()
    first.lease.release()
    second.lease.acquire()
    made = second.observe_and_decide()
    assert (made.current, made.wanted) == (9, 9), "nothing was measured yet: nothing is lowered"
    assert hand.told == [9]


def test_one_that_slept_through_its_lease_writes_and_starts_nothing(world: World, pool: Pool, valkey_url: str) -> None:
    hand = ManualActuator()
    late = Autoscaling(pool, valkey_url, [mail()], {"mail": hand})
    late.lease.acquire()
    late.observe_and_decide()
    told = list(hand.told)
    with transaction(pool) as conn:
        conn.execute("UPDATE leases SET until = '-infinity'")  # as its end does
    other = Autoscaling(pool, valkey_url, [mail()])
    assert other.lease.acquire()
    world.enqueue(REF, 5000)
    with pytest.raises(AutoscalerFenced):
        late.observe_and_decide()
    assert late.lease.is_held_elsewhere
    assert hand.told == told
    assert len(stored(pool)) == 1


def test_workers_are_released_when_another_autoscaler_takes_over(world: World, pool: Pool, valkey_url: str) -> None:
    hand, stop = ManualActuator(), Event()
    world.enqueue(REF, 5)
    first = Autoscaling(pool, valkey_url, [mail()], {"mail": hand}, every_s=0.1)
    running = Thread(target=first.scaler.run_forever, args=[stop])
    running.start()
    try:
        wait_until(lambda: hand.told and hand.told[-1] == 1, "it works")
        with transaction(pool) as conn:
            conn.execute("UPDATE leases SET holder = 'other', token = token + 1, until = now() + interval '1d'")
        wait_until(lambda: hand.told[-1] == 0, "it lets its workers go")
        count = len(stored(pool))
        hand.told.clear()
        wait_until(lambda: len(hand.told) > 3, "it stands by")
        assert set(hand.told) == {0}
        assert len(stored(pool)) == count
    finally:
        stop.set()
        running.join(60)
    assert not running.is_alive()


# --- What is kept ----------------------------------------------------------------------------------


def test_each_decision_is_kept_with_what_it_was_based_on(world: World, mails: Autoscaling, pool: Pool) -> None:
    mails.observe_and_decide()
    world.enqueue(REF, 5000)
    made = mails.observe_and_decide()
    kept = stored(pool)[0]
    assert (kept.verb, kept.wanted, kept.sentence) == (made.verb, made.wanted, made.sentence)
    assert kept.inputs == json.loads(json.dumps(made.inputs))
    with transaction(pool) as conn:
        known = records.find_type(conn, "mail")
    assert known is not None
    assert (known.worker, known.state, known.fresh) == (mail(), made.state, True)


def test_old_decisions_and_removed_types_are_deleted(mails: Autoscaling, pool: Pool, valkey_url: str) -> None:
    mails.observe_and_decide(-8 * 86_400)
    mails.observe_and_decide(8 * 86_400)
    other = Autoscaling(pool, valkey_url, [WorkerType("other", all_queues=True)])
    mails.lease.release()
    other.lease.acquire()
    other.observe_and_decide()
    with transaction(pool) as conn:
        assert [each.name for each in records.list_types(conn)] == ["other"]
    assert len(stored(pool)) == 1


# --- On the command line ---------------------------------------------------------------------------

TYPES = """
[[worker]]
name = "mail"
queue = "emails"
org = "acme"
scaling = { max = 20, age = "1d", service_time = "10s" }
"""


class Cli:
    def __init__(self, folder: Path, valkey_url: str, postgres_url: str) -> None:
        self.file = folder / "workers.toml"
        self.file.write_text(TYPES, "utf-8")
        self.env = {
            "HEADRACE_REDIS_URL": valkey_url,
            "HEADRACE_POSTGRES_URL": postgres_url,
            "HEADRACE_AUTOSCALE_TYPES": str(self.file),
            "HEADRACE_AUTOSCALE_EVERY": "200ms",
            "HEADRACE_AUTOSCALE_FRESH": "1h",
        }

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(headrace, ["autoscale", *arguments], env=self.env)


@pytest.fixture
def cli(tmp_path: Path, valkey_url: str, postgres_url: str) -> Cli:
    return Cli(tmp_path, valkey_url, postgres_url)


def test_run_once_explain_and_status(cli: Cli, world: World) -> None:
    assert "No decisions yet" in cli.run("explain").output
    world.enqueue(REF, 500)
    assert "Raised from 0 to 9: 500 waiting" in cli.run("run", "--once").output
    explained = cli.run("explain", "mail").output
    assert "500 wait" in explained
    assert "needs 83.3 slots, 83.3 allowed by limits and pauses; running workers: unknown" in explained
    assert "queue emails in acme / shop / prod: 500 waiting, 0 running, 0/s arriving, run time unknown" in explained
    document = json.loads(cli.run("explain", "--json").output.splitlines()[-1])
    assert document["types"]["mail"][0]["inputs"]["sources"][0]["depth"] == 500
    [shown] = json.loads(cli.run("status", "--json").output.splitlines()[-1])["types"]
    assert (shown["wanted"], shown["workers"], shown["fresh"]) == (9, None, True)
    assert "0..20" in cli.run("status").output
    assert "No decisions stored" not in cli.run("explain", "mail").output
    assert cli.run("explain", "nothing").exit_code == 1
    cli.file.write_text(TYPES.replace('"mail"', '"post"'), "utf-8")
    cli.run("run", "--once")
    assert "500 wait" in cli.run("explain", "mail").output  # its decisions are kept for as long as others


def test_a_dry_run_touches_nothing(cli: Cli, world: World, valkey: Valkey, postgres_url: str) -> None:
    world.enqueue(REF, 500)
    tables = ("leases", "autoscale_types", "autoscale_decisions")

    def everything() -> Any:
        with connect(postgres_url) as conn:
            rows = [conn.execute(f"SELECT * FROM {table}").fetchall() for table in tables]  # pyright: ignore[reportArgumentType]
        return rows, {key: valkey.dump(key) for key in valkey.scan_iter("*")}

    before = everything()
    assert "Raised from 0 to 9" in cli.run("run", "--dry-run", "--once").output
    assert everything() == before
    assert before[0] == [[], [], []]
