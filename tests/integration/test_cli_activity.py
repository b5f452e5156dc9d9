"""What commands change is recorded in the audit log, if there is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.cli import main, operation_log
from headrace.cli.postgres_schemas import POSTGRES_SCHEMAS
from headrace.errors import ServiceUnavailable
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.postgres.connect import open_pool, transaction
from headrace.postgres.migrate import migrate
from headrace.queue.client import SyncClient

EMAILS = QueueRef("acme", "shop", "prod", "emails")
NAMES = ("acme", "shop", "prod", "emails")


class Commands:
    def __init__(self, valkey_url: str, postgres_url: str) -> None:
        self.environ = {"HEADRACE_REDIS_URL": valkey_url, "HEADRACE_POSTGRES_URL": postgres_url}

    def run(self, *arguments: str, exit_code: int = 0) -> str:
        result = CliRunner().invoke(main.headrace, arguments, env=self.environ)
        assert result.exit_code == exit_code, result.output
        return result.stdout

    def list_entries(self, *options: str) -> list[dict[str, Any]]:
        return json.loads(self.run("activity", "--json", *options))["entries"]


@pytest.fixture
def commands(valkey_url: str, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    migrate(postgres_url, POSTGRES_SCHEMAS)
    with SyncClient(valkey_url) as client:
        client.enqueue(EMAILS, NewJob("send", id="1"))
    return Commands(valkey_url, postgres_url)


def test_changes_of_commands_are_recorded_with_their_user_and_reason(commands: Commands) -> None:
    commands.run("pause", *NAMES, "--reason", "mail server is down")
    commands.run("limits", *NAMES[:3], "--limit", "5", "--burst", "2")
    commands.run("caps", *NAMES, "--items", "7")
    commands.run("redrive", *NAMES, "--task", "send")
    commands.run("dead", "delete", *NAMES)
    commands.run("cancel", *NAMES[:3], "1")
    entries = commands.list_entries()
    assert [(entry["action"], entry["queue"], entry["outcome"]) for entry in reversed(entries)] == [
        ("queue.settings", "emails", "done"),
        ("environment.limits", None, "done"),
        ("queue.settings", "emails", "done"),
        ("dead.redrive", "emails", "done"),
        ("dead.remove", "emails", "done"),
        ("job.cancel", None, "done"),
    ]
    paused = entries[-1]
    assert (paused["key_name"], paused["details"]["reason"]) == ("command line", "mail server is down")
    assert paused["details"]["paused"] is True
    assert "@" in paused["details"]["user"]
    text = commands.run("activity", "--limit", "6")
    assert "acme/shop/prod/emails" in text
    assert "reason mail server is down" in text


def test_a_refused_change_is_recorded_as_refused(commands: Commands) -> None:
    commands.run("pause", "acme", "shop", "prod", "nothing", exit_code=1)
    [entry] = commands.list_entries()
    assert entry["outcome"] == "refused"
    assert "There is no queue" in entry["details"]["error"]


def test_entries_of_one_tenant(commands: Commands, valkey_url: str) -> None:
    with SyncClient(valkey_url) as client:
        client.enqueue(QueueRef("other", "shop", "prod", "emails"), NewJob("send"))
    commands.run("pause", "other", "shop", "prod", "emails")
    commands.run("pause", *NAMES)
    assert [entry["org"] for entry in commands.list_entries()] == ["acme", "other"]
    assert [entry["org"] for entry in commands.list_entries("--org", "other")] == ["other"]
    assert commands.list_entries("--org", "other", "--project", "shop", "--env", "test") == []
    commands.run("activity", "--env", "test", exit_code=2)


def test_commands_work_without_the_table_of_the_audit_log(commands: Commands, postgres_url: str) -> None:
    with open_pool(postgres_url, max_size=1) as pool, transaction(pool) as conn:
        conn.execute("DROP TABLE audit_log")
    assert "paused" in commands.run("pause", *NAMES)


def test_an_outcome_that_cannot_be_recorded_does_not_hide_that_of_the_command(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ServiceUnavailable("PostgreSQL does not respond.")

    monkeypatch.setattr(operation_log, "end_entry", fail)
    result = CliRunner().invoke(main.headrace, ["pause", *NAMES], env=commands.environ)
    assert (result.exit_code, result.stdout) == (0, "paused acme / shop / prod / emails\n")
    assert "audit log does not have the outcome" in result.stderr
    assert commands.list_entries()[0]["outcome"] == "begun"
