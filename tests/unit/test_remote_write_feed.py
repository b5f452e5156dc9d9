"""Remote write beside the pipeline, without Spark: what a failing disk, a full spool or a dead receiver does."""

from __future__ import annotations

import errno
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.doctor import check_remote_write
from headrace.cli.remote_write import build_remote_write_options, find_remote_write_path
from headrace.errors import SettingsError, SpoolBusy
from headrace.export.exporter import ExporterOptions
from headrace.export.remote_write import RemoteWriteTarget
from headrace.pipeline import remote_write
from headrace.pipeline.buckets import bucketize, merge
from headrace.pipeline.queue_samples import COUNTERS, GAUGES
from headrace.pipeline.remote_write import REMOTE_WRITE_METRICS, RemoteWrite, RemoteWriteOptions
from headrace.runtime.backoff import Backoff
from headrace.runtime.prometheus import build_registry
from headrace.settings import load_settings
from headrace.spool.files import Files
from headrace.spool.options import SpoolOptions
from tests.conftest import wait_until
from tests.events import event_table
from tests.remote_write import Reply, receiving

DOCS = Path(__file__).parents[2] / "docs"
MS = 1_800_000_000_000
NOWHERE = "http://127.0.0.1:9/"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def build_options(folder: Path, url: str = NOWHERE, **changes: Any) -> RemoteWriteOptions:
    spool = SpoolOptions(folder / "remote_write", full_behavior="drop_oldest", **changes)
    exporter = ExporterOptions(workers=4, adaptive=True, backoff=Backoff(0.01, 1.0, 0.01), breaker_reset_s=0.01)
    return RemoteWriteOptions(RemoteWriteTarget(url, timeout_s=60.0), spool, exporter)


@contextmanager
def running(options: RemoteWriteOptions, clock: Clock | None = None) -> Generator[RemoteWrite]:
    remote = RemoteWrite(options, clock=clock or Clock())
    remote.start()
    try:
        yield remote
    finally:
        remote.close(60.0)


def submit(remote: RemoteWrite, number: int, **event: Any) -> None:
    remote.submit(merge([bucketize(event_table({"at_ms": MS + number, "odometer": number, **event}))]), 0)


def read(remote: RemoteWrite, name: str, **labels: str) -> float | None:
    return build_registry(remote.families).get_sample_value(name, labels)


def test_what_was_not_sent_is_sent_by_the_next_run(tmp_path: Path) -> None:
    with receiving() as receiver:
        receiver.script.append(Reply(503, "3600"))
        with running(build_options(tmp_path, receiver.url)) as remote:
            submit(remote, 1)
            wait_until(lambda: remote.exporter.stats().failures, "the receiver is busy")
            submit(remote, 2)
        with running(build_options(tmp_path, receiver.url)) as remote:
            wait_until(lambda: remote.destination.count_samples()["sent"] == 16, "both arrived")
            assert read(remote, "headrace_spool_recovered_total", spool="remote_write") == 2
            assert remote.exporter.stats().senders == 1
        assert receiver.find(op="enqueue") == [(MS + 1, 1), (MS + 2, 2)]


def test_a_full_spool_drops_the_oldest_and_requests_a_resync(tmp_path: Path) -> None:
    clock = Clock()
    with running(build_options(tmp_path, max_size=2), clock) as remote:
        assert remote.take_resync_request()  # at every start
        assert not remote.take_resync_request()
        wait_until(lambda: submit(remote, 1) or remote.exporter.problem, "the receiver is unhealthy")
        wait_until(lambda: remote.spool.stats().dropped or submit(remote, 1), "samples were dropped")
        clock.now = remote_write.RESYNC_EVERY_S
        assert not remote.take_resync_request()  # not while the receiver does not accept anything
        assert remote.health()["healthy"] is False
        assert read(remote, "headrace_spool_dropped_total", spool="remote_write", reason="oldest")


def test_a_resync_is_requested_after_a_loss_when_the_receiver_is_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(remote_write, "WAITING_BATCHES", 1)
    with receiving() as receiver:
        remote = RemoteWrite(build_options(tmp_path, receiver.url), clock=clock)
        assert remote.take_resync_request()
        for number in (1, 2, 3):  # its thread does not run yet
            submit(remote, number)
        assert read(remote, "headrace_remote_write_lost_batches_total") == 2
        assert not remote.take_resync_request()  # too early after the last one
        clock.now = remote_write.RESYNC_EVERY_S
        assert remote.take_resync_request()
        assert not remote.take_resync_request()
        remote.start()
        wait_until(lambda: remote.destination.count_samples()["sent"] == 9, "the first arrived")
        assert read(remote, "headrace_remote_write_samples_total", outcome="sent") == 9
        assert read(remote, "headrace_remote_write_queues") == 1
        remote.close(60.0)


def test_samples_wait_in_memory_while_the_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    with receiving() as receiver:
        receiver.script.append(Reply(503, "3600"))
        options = build_options(tmp_path, receiver.url, inmemory_blocks=0, block_timeout=0.0)
        with running(options) as remote:
            submit(remote, 1)
            wait_until(lambda: remote.exporter.stats().failures, "the receiver is busy")
            with monkeypatch.context() as disk:
                disk.setattr(Files, "write", fail)
                submit(remote, 2)
                submit(remote, 3)
                wait_until(lambda: remote.failover.stats().records == 2, "two batches wait in memory")
                assert read(remote, "headrace_export_failover_records", spool="remote_write") == 2
            submit(remote, 4)  # when the disk is back, behind those in memory
            wait_until(lambda: remote.spool.stats().size == 4, "all are in the spool")
        with running(build_options(tmp_path, receiver.url)) as remote:
            wait_until(lambda: remote.spool.stats().size == 0, "all arrived")
            assert remote.destination.count_samples()["refused"] == 0
        assert receiver.find(op="enqueue") == [(MS + number, number) for number in (1, 2, 3, 4)]


def test_rows_that_cannot_be_read_do_not_end_the_thread(tmp_path: Path) -> None:
    with receiving() as receiver, running(build_options(tmp_path, receiver.url)) as remote:
        remote.submit(event_table({}), 0)
        submit(remote, 1)
        wait_until(lambda: receiver.stored, "the next batch arrived")
        assert read(remote, "headrace_remote_write_lost_batches_total") == 1


def test_two_processes_do_not_share_a_spool(tmp_path: Path) -> None:
    with running(build_options(tmp_path)), pytest.raises(SpoolBusy):
        RemoteWrite(build_options(tmp_path))


def test_doctor_sends_a_request_without_samples() -> None:
    def check(url: str) -> list[tuple[bool, str]]:
        settings = load_settings({"remote_write.url": url}, {}, None).settings
        return [(each.ok, each.found) for each in check_remote_write(settings)]

    with receiving() as receiver:
        url = receiver.url.replace("http://", "http://ann:secret@")
        masked = url.replace("secret", "***")
        assert check(url) == [(True, f"{masked} accepts samples")]
        for status in (400, 401, 404, 503):
            receiver.script.append(Reply(status))
            [(ok, found)] = check(url)
            assert (ok, f"status {status}" in found, "secret" in found) == (False, True, False)
        assert receiver.sizes == [0] * 5
    assert [ok for ok, _ in check(url)] == [False]
    assert check("") == []


class TestSettings:
    def test_nothing_is_sent_without_a_url(self) -> None:
        assert build_remote_write_options(load_settings({}, {}, None).settings) is None

    def test_options(self, tmp_path: Path) -> None:
        given = {
            "remote_write.url": "https://ann:secret@example.com/write",
            "remote_write.bearer_token": "token",
            "remote_write.headers": ["X-Scope-OrgID: shop", "X-Other:1"],
            "remote_write.labels": ["cluster=eu", "note=a b=c"],
            "remote_write.repeat": "",
            "remote_write.max_bytes": "2MiB",
            "embedded.data_dir": str(tmp_path),
        }
        settings = load_settings(given, {}, None).settings
        made = build_remote_write_options(settings)
        assert made is not None
        expected = {"Authorization": "Bearer token", "X-Scope-OrgID": "shop", "X-Other": "1"}
        assert made.target.headers == expected
        assert made.labels == {"cluster": "eu", "note": "a b=c"}
        assert (made.repeat_s, made.exporter.backoff.base_s) == (None, settings.spool.retry_interval)
        assert made.spool.path == find_remote_write_path(settings) == tmp_path / "remote_write"
        assert (made.spool.max_bytes, made.spool.full_behavior, made.spool.stale_flush) == (
            2 * 2**20,
            "drop_oldest",
            1.0,
        )
        assert not {"secret", "token", "shop"} & set(re.findall(r"\w+", repr(made) + repr(settings.remote_write)))

    @pytest.mark.parametrize("label", ["org=x", "__name__=x", "9=x", "a=", "no-label"])
    def test_labels_that_are_taken_or_invalid(self, label: str) -> None:
        with pytest.raises(SettingsError, match=r"remote_write\.labels"):
            load_settings({"remote_write.labels": [label]}, {}, None)


class TestDocumentation:
    def test_every_metric_of_remote_write_is_documented(self) -> None:
        page = (DOCS / "reference" / "pipeline-metrics.md").read_text("utf-8")
        for each in REMOTE_WRITE_METRICS:
            labels = ", ".join(f"`{label}`" for label in each.labels)
            assert f"| `{each.name}` | {each.type} | {labels} | {each.help} |" in page

    def test_every_series_is_documented(self) -> None:
        page = (DOCS / "how-to" / "prometheus.md").read_text("utf-8")
        section = page.split("## Receive queue metrics from the pipeline")[1].split("\n## ")[0]
        documented = {
            (name, tuple(re.findall(r"`(\w+)`", labels)))
            for name, labels in re.findall(r"^\| `(headrace_queue_\w+)` \| \w+ \| ([^|]*) \|", section, re.MULTILINE)
        }
        queue = ("org", "project", "env", "queue")
        assert documented == {(name, (*queue, *own)) for name, own in (*GAUGES, *COUNTERS)}
