"""`headrace spool` on real directories: at rest, in use, damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.cli import main
from headrace.cli.pipeline import build_pipeline_options
from headrace.cli.spool_options import (
    build_backoff,
    build_exporter_options,
    build_send_limit,
    build_spool_options,
    find_spool_path,
    read_memory_limit,
)
from headrace.errors import SettingsError
from headrace.export.remote_write_format import encode_label, encode_series
from headrace.pipeline.arrow import to_payload
from headrace.settings import load_settings
from headrace.spool.options import SpoolOptions
from headrace.spool.spool import Spool
from headrace.warehouse.connect import Client
from tests.integration.test_spool_clickhouse import TABLE, counted, everywhere, rows
from tests.remote_write import receiving

SERVERS = {"redis.url": "redis://127.0.0.1:1", "clickhouse.url": "http://127.0.0.1:1"}


def run(arguments: Sequence[object], **settings: str) -> Result:
    flags = [word for key, value in settings.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]
    return CliRunner().invoke(main.headrace, [*flags, "spool", *map(str, arguments)])


def document(result: Result) -> dict[str, Any]:
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed spool: three records, one of them tried, and a dead letter."""
    path = tmp_path / "spool"
    with Spool.open(SpoolOptions(path=path)) as spool:
        for number in range(4):
            spool.put(
                f"payload {number}".encode() * 20, token=f"t{number}", meta={"table": "x"}, marks={"a": str(number)}
            )
        dead, tried = spool.lease(), spool.lease()
        assert dead
        assert tried
        spool.reject(dead.id, "bad")
        spool.nack(tried.id)
    return path


def damage(path: Path) -> None:
    segment = max(path.glob("*.seg*"), key=lambda file: file.stat().st_size)
    data = bytearray(segment.read_bytes())
    at = data.index(b"t3")
    data[at] ^= 0xFF
    segment.write_bytes(data)


def test_inspect(path: Path) -> None:
    found = document(run(["inspect", path, "--json"]))
    assert (found["records"], found["tried_before"], found["dead"], found["quarantined"]) == (3, 1, 1, 0)
    assert (found["in_use"], found["problems"], found["marks"]) == (False, 0, {"a": "3"})
    assert "payload" not in run(["inspect", path]).stdout
    assert "records" in run(["inspect", path]).stdout


def test_a_spool_in_use_can_be_looked_at_and_not_drained(path: Path, tmp_path: Path) -> None:
    with Spool.open(SpoolOptions(path=path)):
        assert document(run(["inspect", path, "--json"]))["in_use"] is True
        assert run(["verify", path]).exit_code == 0
        drained = run(["drain", path, "--to-file", tmp_path / "out"])
    assert drained.exit_code == 5
    assert "error: " in drained.stderr


def test_verify_says_what_is_damaged(path: Path) -> None:
    assert document(run(["verify", path, "--json"])) == {"ok": True, "records": 4, "lost": 0, "findings": []}
    damage(path)
    result = run(["verify", path, "--json"])
    assert result.exit_code == 1
    assert (document(result)["ok"], document(result)["lost"]) == (False, 1)
    assert "problem" in run(["verify", path]).stdout


def test_quarantine_lists_damaged_bytes_and_dead_letters(path: Path) -> None:
    damage(path)
    Spool.open(SpoolOptions(path=path)).close()
    found = document(run(["quarantine", path, "--json"]))
    assert len(found["quarantined"]) == 1
    assert [each["facts"]["reason"] for each in found["dead"]] == ["bad"]
    assert "bad" in run(["quarantine", path]).stdout


def test_drain_to_a_file_empties_the_spool(path: Path, tmp_path: Path) -> None:
    result = run(["drain", path, "--to-file", tmp_path / "out", "--json"])
    assert (result.exit_code, document(result)) == (0, {"sent": 3, "dead": 0, "corrupt": 0, "left": 0})
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert sorted((line["token"], line["text"][:9]) for line in lines) == [
        ("t1", "payload 1"), ("t2", "payload 2"), ("t3", "payload 3")
    ]  # fmt: skip
    assert document(run(["inspect", path, "--json"]))["records"] == 0


def test_drain_to_clickhouse(tmp_path: Path, clickhouse_url: str, warehouse: Client) -> None:
    with Spool.open(SpoolOptions(path=tmp_path / "spool")) as spool:
        spool.put(to_payload(rows(3)), token="t", meta=TABLE)
    where = {"spool__path": str(tmp_path / "spool"), "clickhouse__url": clickhouse_url}
    result = run(["drain"], **where, warehouse__database=str(warehouse.database))
    assert result.exit_code == 0, result.output
    assert result.stdout == "sent 1, dead-lettered 0, corrupt 0, remaining 0\n"
    assert counted(warehouse) == everywhere(3)


def test_drain_to_remote_write(tmp_path: Path) -> None:
    folder = tmp_path / "remote_write"
    with Spool.open(SpoolOptions(path=folder)) as spool:
        for at in (1, 2, 3):
            spool.put(encode_series(encode_label("__name__", "a"), at, at))
    result = run(["drain", folder, "--json"], embedded__data_dir=str(tmp_path))
    assert (result.exit_code, "remote_write.url is not set" in result.stderr) == (3, True)
    with receiving() as receiver:
        where = {"embedded__data_dir": str(tmp_path), "remote_write__url": receiver.url}
        result = run(["drain", folder, "--json"], **where)
        assert (result.exit_code, document(result)) == (0, {"sent": 3, "dead": 0, "corrupt": 0, "left": 0})
        assert receiver.find(name="a") == [(1, 1), (2, 2), (3, 3)]


def test_what_cannot_be_sent_in_time_stays(tmp_path: Path) -> None:
    with Spool.open(SpoolOptions(path=tmp_path / "spool")) as spool:
        spool.put(to_payload(rows(3)), token="t", meta=TABLE)
    result = run(["drain", tmp_path / "spool", "--timeout", "1s", "--json"], clickhouse__url="http://127.0.0.1:9")
    assert (result.exit_code, document(result)) == (1, {"sent": 0, "dead": 0, "corrupt": 0, "left": 1})


@pytest.mark.parametrize("command", ["inspect", "verify", "drain", "quarantine"])
def test_no_such_spool(tmp_path: Path, command: str) -> None:
    result = run([command, tmp_path / "none", *(["--to-file", tmp_path / "out"] if command == "drain" else [])])
    assert result.exit_code == 1
    assert "There is no spool" in result.stderr
    assert not (tmp_path / "none").exists()


class TestOptions:
    def test_zeros_become_numbers(self) -> None:
        settings = load_settings({"spool.workers": "0"}, {}, None).settings
        assert build_exporter_options(settings, clickhouse=True).bounds.maximum % 4 == 0
        assert build_send_limit(settings).acquire(blocking=False)

    @pytest.mark.parametrize(("cores", "workers"), [(1, 4), (2, 4), (4, 8), (8, 16), (64, 16)])
    def test_workers_follow_the_cores_within_bounds(
        self, cores: int, workers: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("os.cpu_count", lambda: cores)
        assert build_exporter_options(load_settings({}, {}, None).settings, clickhouse=True).workers == workers

    def test_shares_are_of_the_disk_or_of_memory(self, tmp_path: Path) -> None:
        """Regression: a share of `max_bytes` was one of memory, also for records on disk."""
        shares = {"spool.max_bytes": "10%", "spool.inmemory_bytes": "0.10", "spool.path": str(tmp_path / "a" / "b")}
        disk, memory = shutil.disk_usage(tmp_path).total, read_memory_limit()
        found = build_spool_options(load_settings(shares, {}, None).settings)
        assert (found.max_bytes, found.inmemory_bytes) == (disk // 10, memory // 10)
        found = build_spool_options(load_settings({**shares, "spool.type": "memory"}, {}, None).settings)
        assert found.max_bytes == memory // 10

    def test_the_send_limit_never_leaves_workers_idle_by_default(self) -> None:
        """Regression: 200 workers sent 4 records at once."""
        settings = load_settings({"spool.workers": "200"}, {}, None).settings
        assert build_exporter_options(settings, clickhouse=True).send_limit == 200
        limit = build_send_limit(settings)
        assert all(limit.acquire(blocking=False) for _ in range(200))

    def test_the_pipeline_uses_the_settings_of_the_exporter(self, tmp_path: Path) -> None:
        """Regression: the pipeline always had one worker, and ignored these settings."""
        given = {"spool.workers": "7", "spool.adaptive_workers": "true", "spool.max_workers": "9"}
        given |= {"spool.preparers": "3", "spool.max_sends": "5", "spool.global_send_limit": "2"}
        options = build_pipeline_options(load_settings({**SERVERS, **given}, {}, None).settings)
        exporter = options.exporter
        assert (exporter.workers, exporter.adaptive, exporter.bounds.maximum) == (7, True, 9)
        assert (exporter.preparer_threads, exporter.send_limit) == (3, 5)
        assert options.send_limit is not None
        assert [options.send_limit.acquire(blocking=False) for _ in range(3)] == [True, True, False]

    def test_the_pipeline_refuses_a_spool_in_memory(self) -> None:
        """Regression: it started, and could not be started a second time, because the checkpoint had no spool."""
        with pytest.raises(SettingsError, match="memory cannot be used by the pipeline"):
            build_pipeline_options(load_settings({**SERVERS, "spool.type": "memory"}, {}, None).settings)

    def test_clickhouse_is_tried_again_sooner(self) -> None:
        settings = load_settings({}, {}, None).settings
        assert (
            build_backoff(settings, clickhouse=True).base_s,
            build_backoff(settings, clickhouse=True).longest_s,
        ) == (1.0, 30.0)
        assert (
            build_backoff(settings, clickhouse=False).base_s,
            build_backoff(settings, clickhouse=False).longest_s,
        ) == (
            5.0,
            300.0,
        )

    def test_backoff_switched_off_is_a_steady_pace(self) -> None:
        steady = build_backoff(load_settings({"spool.backoff": "false"}, {}, None).settings, clickhouse=False)
        assert [steady.delay_s(failures, 0.0) for failures in (1, 5, 50)] == [5.0, 5.0, 5.0]

    def test_the_default_path_is_in_the_data_directory(self) -> None:
        assert find_spool_path(load_settings({}, {}, None).settings) == Path(".headrace/spool")
