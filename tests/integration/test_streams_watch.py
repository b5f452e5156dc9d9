"""Depth and events of streams that may belong to other applications, on a real server."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import headrace
from headrace.embedded.valkey import EmbeddedValkey
from headrace.errors import NotAStream, QueueUnavailable, UnknownGroup
from headrace.model.event import COUNT_COLUMN, RESYNC, TICK, Op
from headrace.model.job import NewJob
from headrace.pipeline.buckets import bucketize, merge
from headrace.pipeline.decode import decode
from headrace.queue import keys as queue_keys
from headrace.queue.scripts import Stubs
from headrace.streams.consumers import read_consumers
from headrace.streams.depth import read_depth
from headrace.streams.scripts import RETRY_CONSUMER, SCRIPTS, GroupStubs, script
from headrace.streams.watcher import Watcher, compute_gauges, emit_events, make_watched_group
from headrace.valkey.connect import Valkey, connect
from headrace.valkey.scripts import run
from headrace.valkey.streams import read_entries_between
from tests.conftest import READY_S
from tests.model.fold import Event, Fold, read_events
from tests.streams import GROUP, KEYS, STREAM, WATCHED, publish

STUBS = Stubs(2, 100_000)
SHARD = STUBS.find_shard(WATCHED.ref)
STATE = f"hr:{{{SHARD}}}:stream:org:project:streams:browser%3Ajobs/workers"
OURS = GroupStubs(KEYS, "headrace:me")


@pytest.fixture
def group(valkey: Valkey) -> Valkey:
    valkey.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    return valkey


@pytest.fixture
def watcher(group: Valkey) -> Watcher:
    return Watcher(group, group, STUBS, [WATCHED])


def add(client: Valkey, count: int) -> list[str]:
    return [client.xadd(STREAM, {"json": '{"type": "note"}'}).decode() for _ in range(count)]  # pyright: ignore


def read(client: Valkey, count: int, by: str = "theirs") -> list[str]:
    answer: Any = client.xreadgroup(GROUP, by, {STREAM: ">"}, count=count)
    return [entry_id.decode() for _, entries in answer for entry_id, _ in entries]


def events(client: Valkey) -> list[Event]:
    return [event for event in read_events(client, SHARD) if event.op != TICK]


def sum_events(client: Valkey) -> Counter[str]:
    """What all events together count, by verb; the odometers and numbers of events must agree with it."""
    fold = Fold().add(read_events(client, SHARD))
    assert (fold.gaps, fold.odometer_breaks) == (0, 0)
    return fold.counts[WATCHED.ref]


# Depth --------------------------------------------------------------------------------------------


def test_all_scripts_compile(valkey: Valkey) -> None:
    for name in SCRIPTS:
        valkey.script_load(script(name).source)


def test_depth_of_what_is_not_there(valkey: Valkey) -> None:
    with pytest.raises(UnknownGroup, match=f"no group '{GROUP}'"):
        read_depth(valkey, STREAM, GROUP)
    valkey.xadd(STREAM, {"json": "{}"})
    with pytest.raises(UnknownGroup):
        read_depth(valkey, STREAM, GROUP)
    valkey.set("text", "x")
    with pytest.raises(NotAStream, match="'text' does not hold a stream"):
        read_depth(valkey, "text", GROUP)


def test_depth_from_a_server_that_is_down() -> None:
    with connect("redis://127.0.0.1:1/0") as client, pytest.raises(QueueUnavailable):
        read_depth(client, STREAM, GROUP)


def test_depth_after_undelivered_entries_were_trimmed(group: Valkey) -> None:
    """The server's own figure may be too high here: it was 8 with Valkey 9.1.2."""
    add(group, 10)
    read(group, 2)
    group.xtrim(STREAM, maxlen=3, approximate=False)
    depth = read_depth(group, STREAM, GROUP)
    assert (depth.undelivered, depth.pending, depth.load) == (3, 2, 5)


def test_depth_is_counted_where_the_server_does_not_know_it_and_unknown_beyond_the_bound(group: Valkey) -> None:
    entries = add(group, 40)
    read(group, 20)
    group.xdel(STREAM, entries[30])  # a hole ahead of the group: the server's figure is gone
    assert group.xinfo_groups(STREAM)[0]["lag"] is None  # type: ignore[index]
    assert read_depth(group, STREAM, GROUP, count_bound=19).undelivered == 19
    depth = read_depth(group, STREAM, GROUP, count_bound=18)
    assert (depth.undelivered, depth.pending, depth.load) == (None, 20, None)
    assert "more than 18 entries" in depth.reason
    group.xtrim(STREAM, minid=entries[5], approximate=False)
    assert read_depth(group, STREAM, GROUP, count_bound=18).undelivered == 19  # from behind: 15 of 34


def test_a_group_moved_with_a_wrong_entries_read_is_counted(group: Valkey) -> None:
    entries = add(group, 400)
    group.execute_command("XGROUP", "SETID", STREAM, GROUP, entries[350], "ENTRIESREAD", 7)
    assert read_depth(group, STREAM, GROUP).undelivered == 49
    group.execute_command("XGROUP", "SETID", STREAM, GROUP, entries[10], "ENTRIESREAD", 390)
    assert read_depth(group, STREAM, GROUP).undelivered == 389


def test_ids_that_are_no_times_have_no_age(group: Valkey) -> None:
    group.xadd(STREAM, {"json": "{}"}, id="7-0")
    [entry] = add(group, 1)
    read(group, 1)
    depth = read_depth(group, STREAM, GROUP)
    assert (depth.oldest_pending_ms, depth.oldest_undelivered_ms) == (None, int(entry.split("-")[0]))


def test_pending_entries_are_listed_by_consumer(group: Valkey) -> None:
    first, *_ = add(group, 6)
    read(group, 3, by="busy")
    read(group, 1, by="stuck")
    group.xclaim(STREAM, GROUP, "busy", 0, [first])
    [waits] = run(group, OURS.dequeue(1)).entries
    run(group, OURS.nack([(waits, 3_600_000)]))
    group.xreadgroup(GROUP, "idle", {STREAM: "0"})
    holders = read_consumers(group, STREAM, GROUP, stuck_after_ms=0)
    assert {each.name: each.pending for each in holders.consumers if each.pending} == {
        "busy": 3,
        "stuck": 1,
        RETRY_CONSUMER: 1,
    }
    assert {each.name for each in holders.stuck} == {"busy", "stuck"}
    assert read_consumers(group, STREAM, GROUP, stuck_after_ms=3_600_000).stuck == []
    assert holders.deliveries == {1: 4, 2: 1}


# Events -------------------------------------------------------------------------------------------


def test_a_foreign_group_is_counted_from_server_data(group: Valkey, watcher: Watcher) -> None:
    add(group, 5)
    assert watcher.run_once() == 1  # what was there before is where the odometers begin
    assert sum_events(group) == Counter()
    add(group, 3)
    first = read(group, 6)
    group.xack(STREAM, GROUP, *first[:4])
    watcher.run_once()
    watcher.run_once()
    assert sum_events(group) == Counter({Op.ENQUEUE: 3, Op.DEQUEUE: 6, Op.ACK: 4})
    last = events(group)[-1]
    assert (last.op, last["depth"], last["running"], last["scheduled"]) == (RESYNC, 2, 2, 0)
    assert (last["env_depth"], last["env_running"], last["bytes"]) == (2, 2, None)
    assert last["oldest_ms"] == read_depth(group, STREAM, GROUP).oldest_undelivered_ms


def test_our_own_workers_are_counted_exactly_with_waits_and_run_times(group: Valkey, watcher: Watcher) -> None:
    publish(group, NewJob("note"), NewJob("note"), NewJob("note"), NewJob("note"))
    done, failed, later, buried = run(group, OURS.dequeue(4)).entries
    watcher.run_once()  # where the odometers begin
    run(group, OURS.ack([(done, 17)]))
    run(group, OURS.nack([(failed, 0), (later, 3_600_000)]))
    run(group, OURS.bury([(buried, "why")]))
    watcher.run_once()
    [again] = run(group, OURS.dequeue(4)).entries
    run(group, OURS.ack([(again, 0)]))
    watcher.run_once()
    assert sum_events(group) == Counter({Op.DEQUEUE: 1, Op.ACK: 2, Op.NACK: 2, Op.BURY: 1})
    assert [event.runs for event in events(group) if event.op == Op.ACK] == [[17], [0]]
    assert [len(event.waits) for event in events(group) if event.op == Op.DEQUEUE] == [1]
    gauges = [(event["depth"], event["scheduled"], event["running"]) for event in events(group) if event.op == RESYNC]
    assert gauges == [(0, 0, 4), (1, 1, 0), (0, 1, 0)]


def test_the_pipeline_reads_the_events_of_a_stream(group: Valkey, watcher: Watcher) -> None:
    watcher.run_once()
    publish(group, NewJob("note"), NewJob("note"), NewJob("note"))
    first, second = run(group, OURS.dequeue(2)).entries
    run(group, OURS.ack([(first, 7)]))
    run(group, OURS.nack([(second, 3_600_000)]))
    watcher.run_once()
    entries = read_entries_between(group, queue_keys.metrics(SHARD), "0-0", "+", 1000)
    rows = merge([bucketize(pa.Table.from_batches([decode(SHARD, entries)]))]).to_pylist()
    assert {row["queue_name"] for row in rows} == {WATCHED.ref.queue}
    sums = {
        name: sum(row[name] for row in rows) for name in ("enqueue_count", "dequeue_count", "ack_count", "nack_count")
    }
    assert sums == {"enqueue_count": 3, "dequeue_count": 2, "ack_count": 1, "nack_count": 1}
    last = rows[-1]["last"]
    assert (last["depth"], last["scheduled"], last["running"]) == (1, 1, 0)


def test_streams_of_a_cluster_are_watched(any_valkey_url: str) -> None:
    """The streams have other slots than the shard that receives their events."""
    with connect(any_valkey_url) as client:
        client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        watcher = Watcher(client, client, STUBS, [WATCHED])
        watcher.run_once()
        publish(client, NewJob("note"))
        [held] = run(client, OURS.dequeue(1)).entries
        run(client, OURS.ack([(held, 1)]))
        watcher.run_once()
        assert sum_events(client) == Counter({Op.ENQUEUE: 1, Op.DEQUEUE: 1, Op.ACK: 1})


def test_watchers_that_die_or_run_twice_count_nothing_twice(group: Valkey, watcher: Watcher) -> None:
    watcher.run_once()
    publish(group, NewJob("note"), NewJob("note"))
    held = run(group, OURS.dequeue(2)).entries
    run(group, OURS.ack([(each, 5) for each in held]))
    samples = group.dump(KEYS.samples)
    Watcher(group, group, STUBS, [WATCHED]).run_once()
    assert isinstance(samples, bytes)
    group.delete(KEYS.samples)
    group.restore(KEYS.samples, 0, samples)  # as if it had died before it trimmed them
    watcher.run_once()
    assert sum(len(event.runs) for event in events(group)) == 2
    assert sum_events(group)[Op.ENQUEUE] == 2


def test_two_watchers_of_one_group_emit_each_change_once(group: Valkey, watcher: Watcher) -> None:
    watcher.run_once()
    publish(group, NewJob("note"))
    [held] = run(group, OURS.dequeue(1)).entries
    run(group, OURS.ack([(held, 5)]))
    after = group.hget(STATE, "samples")
    assert isinstance(after, bytes)
    readings = [run(group, OURS.snapshot(100, after.decode(), 10)) for _ in range(3)]
    for reading in (readings[0], readings[2], readings[1]):
        now = compute_gauges(reading)
        assert now is not None
        assert run(group, emit_events(STUBS, WATCHED.ref, reading, now, after.decode())) == (reading is not readings[1])
    assert sum_events(group) == Counter({Op.ENQUEUE: 1, Op.DEQUEUE: 1, Op.ACK: 1})
    assert [event.runs for event in events(group) if event.runs] == [[5]]


def test_a_late_reading_is_dropped_and_a_restart_of_the_stream_is_a_new_epoch(group: Valkey, watcher: Watcher) -> None:
    add(group, 3)
    watcher.run_once()
    first = events(group)[-1]["epoch"]
    group.delete(STREAM)
    group.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    add(group, 1)
    watcher.run_once()
    add(group, 2)
    watcher.run_once()
    last = events(group)[-1]
    assert last["epoch"] != first
    assert last.odometers == [2 if op == Op.ENQUEUE else 0 for op in COUNT_COLUMN]
    number = len(events(group))
    group.hincrby(
        STATE, "at", 59_000_000
    )  # another watcher emitted a newer snapshot; one that is a minute newer would be ignored
    watcher.run_once()
    assert len(events(group)) == number


def test_one_group_that_cannot_be_read_hides_no_other(group: Valkey) -> None:
    group.set("text", "x")
    others = [make_watched_group(name, GROUP, "org", "project", "streams") for name in ("missing", "text")]
    watcher = Watcher(group, group, STUBS, [*others, WATCHED])
    assert watcher.run_once() == 1
    assert {event.ref for event in events(group)} == {WATCHED.ref}
    group.xgroup_create("missing", GROUP, id="0", mkstream=True)
    assert watcher.run_once() == 2


def test_a_stream_that_may_not_be_read_hides_no_other(group: Valkey, valkey_url: str) -> None:
    group.acl_setuser("few", enabled=True, passwords=["+pw"], categories=["+@all"], keys=[STREAM, f"{{{STREAM}}}*"])
    try:
        with connect(re.sub("//.*@", "//few:pw@", valkey_url)) as theirs:
            secret = make_watched_group("secret", GROUP, "org", "project", "streams")
            assert Watcher(theirs, group, STUBS, [secret, WATCHED]).run_once() == 1
        url = re.sub("//.*@", "//few:pw@", valkey_url)
        shown = headrace_streams(url, "list", "--stream", "secret", "--stream", STREAM)
        assert (shown.exit_code, "server error: " in shown.stdout, STREAM in shown.stdout) == (0, True, True)
    finally:
        group.acl_deluser("few")
    assert {event.ref for event in events(group)} == {WATCHED.ref}


def test_a_group_of_unknown_depth_is_not_reported_as_empty(group: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.streams.watcher.COUNT_BOUND", 5)
    entries = add(group, 40)
    read(group, 20)
    group.xdel(STREAM, entries[30])
    assert Watcher(group, group, STUBS, [WATCHED]).run_once() == 0
    assert events(group) == []


def test_the_watcher_outlives_its_servers(group: Valkey, tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path / "theirs", tmp_path)
    server.start()
    server.wait_ready(READY_S)
    with connect(server.url) as theirs:
        theirs.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        watcher = Watcher(theirs, group, STUBS, [WATCHED])
        assert watcher.run_once() == 1  # a server of its own
        server.stop()
        assert watcher.run_once() == 0
    assert Watcher(group, theirs, STUBS, [WATCHED]).run_once() == 0


# The commands -------------------------------------------------------------------------------------


def headrace_streams(url: str, *arguments: str) -> Result:
    environment = {"HEADRACE_REDIS_URL": url, "HEADRACE_STREAMS_ORG": "org", "HEADRACE_STREAMS_PROJECT": "project"}
    return CliRunner().invoke(headrace, ["streams", *arguments], env=environment)


def document(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


def test_list_says_what_is_there_and_what_is_unknown(group: Valkey, valkey_url: str) -> None:
    add(group, 3)
    read(group, 1)
    group.set("text", "x")
    Watcher(group, group, STUBS, [WATCHED]).run_once()  # its own streams are not listed
    [found] = document(headrace_streams(valkey_url, "list", "--json"))["streams"]
    assert (found["stream"], found["group"], found["undelivered"], found["load"]) == (STREAM, GROUP, 2, 3)
    assert found["consumers"][0]["name"] == "theirs"
    assert (found["total_messages"], found["hard_maxlen"]) == (3, 100_000)
    shown = headrace_streams(valkey_url, "list", "--stream", STREAM, "--stream", "text", "--stream", "missing").stdout
    assert [line.split()[:5] for line in shown.splitlines()[1:2]] == [[STREAM, GROUP, "2", "1", "3"]]
    assert "3/100000" in shown.splitlines()[1]
    assert "not a stream" in shown
    assert "no such stream, or it has no groups" in shown


def test_watch_needs_no_change_elsewhere(group: Valkey, valkey_url: str) -> None:
    before = group.xinfo_stream(STREAM, full=True)
    assert headrace_streams(valkey_url, "watch", "--stream", STREAM, "--group", GROUP, "--once").exit_code == 0
    assert group.xinfo_stream(STREAM, full=True) == before
    assert [event.ref for event in events(group)] == [WATCHED.ref]
    missing = headrace_streams(valkey_url, "watch", "--stream", "missing", "--once")
    assert (missing.exit_code, headrace_streams(valkey_url, "watch").exit_code) == (1, 2)


def test_dead_letters_are_listed_and_redriven(group: Valkey, valkey_url: str) -> None:
    publish(group, NewJob("note"))
    [held] = run(group, OURS.dequeue(1)).entries
    run(group, OURS.bury([(held, "Traceback\nValueError: why")]))
    shown = headrace_streams(valkey_url, "dead", "--stream", STREAM)
    assert "ValueError: why" in shown.stdout
    listed = document(headrace_streams(valkey_url, "dead", "--stream", STREAM, "--json"))
    assert (listed["dead"], listed["letters"][0]["entry_id"]) == (1, held.id)
    assert document(headrace_streams(valkey_url, "redrive", "--stream", STREAM, "--json")) == {"redriven": 1}
    assert read_depth(group, STREAM, GROUP).undelivered == 1


@pytest.mark.parametrize("option", [("dead", "--after"), ("redrive", "--id")])
def test_what_is_no_id_is_refused_with_a_word_of_what_is(option: tuple[str, str], valkey_url: str) -> None:
    command, name = option
    refused = headrace_streams(valkey_url, command, "--stream", STREAM, name, "latest")
    assert refused.exit_code == 2
    assert "Invalid dead-letter id 'latest'" in refused.stderr


def test_published_jobs_go_to_the_stream_of_their_type(valkey: Valkey, valkey_url: str) -> None:
    environment = {"HEADRACE_REDIS_URL": valkey_url, "HEADRACE_STREAMS_ROUTES": "shot=browser:jobs, scan=tankpit:jobs"}
    environment |= {"HEADRACE_STREAMS_HARD_MAXLEN": "3", "HEADRACE_STREAMS_MAXLEN": "2"}
    for task, stream in (("shot", "browser:jobs"), ("scan", "tankpit:jobs"), ("mail", "jobs")):
        result = CliRunner().invoke(headrace, ["streams", "publish", task, "--count", "3", "--json"], env=environment)
        assert document(result)["stream"] == stream
        assert valkey.xlen(stream) == 3
    result = CliRunner().invoke(headrace, ["streams", "publish", "mail"], env=environment)
    assert result.exit_code == 1
    assert "hard_maxlen" in result.stderr


def test_names_too_long_for_history_are_refused(valkey_url: str) -> None:
    result = headrace_streams(valkey_url, "watch", "--stream", "s" * 130, "--once")
    assert result.exit_code == 1
    assert "130" in result.output or "more than 128" in result.output
