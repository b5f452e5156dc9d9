"""Worker types: what a file may say, and what is refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.autoscale.worker_types import (
    InvalidWorkerType,
    Scaling,
    make_worker_type,
    read_worker_types,
    worker_type_from_document,
)
from headrace.cli.autoscale import build_worker_command
from headrace.cli.main import headrace

FULL = """
[[worker]]
name = "mail"
queues = ["emails", "receipts"]
org = "acme"
project = "shop"
env = "prod"
app = "shop.tasks:tasks"

[worker.scaling]
min = 1
max = 20
per_worker = 5
drain = "2m"
age = "45s"
service_time = "500ms"
utilization = 0.7
tolerance = 0.2
up_cooldown = "5s"
down_cooldown = "1m"
settle = "10m"
up_step = 4
down_step = 2

[[worker]]
name = "jobs"
stream = "jobs"
group = "workers"
enabled = false
"""


def test_a_file_is_read_and_kept_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "workers.toml"
    file.write_text(FULL, "utf-8")
    mail, jobs = read_worker_types(file)
    assert mail.queues == ("emails", "receipts")
    assert mail.scaling == Scaling(1, 20, 5, 120.0, 45.0, 0.5, 0.7, 0.2, 5.0, 60.0, 600.0, 4, 2)
    assert (jobs.stream, jobs.group, jobs.enabled, jobs.is_local) == ("jobs", "workers", False, False)
    assert [worker_type_from_document(each.to_document()) for each in (mail, jobs)] == [mail, jobs]


def test_workers_are_started_with_the_settings_of_the_autoscaler() -> None:
    mail = make_worker_type({"name": "mail", "queue": "emails", "app": "shop:tasks", "scaling": {"per_worker": 3}})
    command = build_worker_command(mail, Path("my.toml"), {"queue.shards": "4"})
    assert command[3:] == [
        *("--config", "my.toml", "--set", "queue.shards=4"),
        *("worker", "shop:tasks", "--concurrency", "3", "--queue", "emails"),
    ]
    jobs = make_worker_type({"name": "jobs", "stream": "jobs", "group": "workers", "app": "shop:tasks"})
    assert build_worker_command(jobs, None, {})[-4:] == ["--stream", "jobs", "--group", "workers"]


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    answer = CliRunner().invoke(headrace, ["autoscale", "run"])
    assert answer.exit_code == 3
    assert "autoscale.types" in answer.output


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *(("worker = 1", "has no [[worker]] table"), ("worker = [1]", "has no [[worker]] table")),
        *(("[[job]]", "only [[worker]] is allowed"), ("[[", "not valid TOML")),
    ],
)
def test_files_that_cannot_be_meant_are_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "workers.toml"
    file.write_text(text, "utf-8")
    with pytest.raises(InvalidWorkerType) as refused:
        read_worker_types(file)
    assert words in str(refused.value)


def test_a_name_is_taken_once(tmp_path: Path) -> None:
    file = tmp_path / "workers.toml"
    file.write_text('[[worker]]\nname = "a"\nqueue = "q"\n' * 2, "utf-8")
    with pytest.raises(InvalidWorkerType, match="twice"):
        read_worker_types(file)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("scaling = { min = 5, max = 2 }", "scaling.min = 5 is greater than scaling.max = 2"),
        ("scaling = { drain = 60 }", "scaling.drain = 60 must be a duration"),
        ("scaling = { maximum = 2 }", "unknown field scaling.maximum"),
        ('stream = "jobs"', "exactly one of queue, queues, all_queues and stream is required, found queue and stream"),
        ('colour = "red"', "unknown field(s) colour"),
        ("enabled = 1", "enabled must be true or false"),
        ('project = "shop"', "project requires org"),
        ('group = "workers"', "stream and group must be set together"),
        ('queues = ["a\\u0001"]', "queues holds a control character"),
        ('app = "a:b"\ncommand = ["c"]', "app and command are mutually exclusive"),
    ],
)
def test_impossible_types_are_refused_with_the_reason(tmp_path: Path, change: str, words: str) -> None:
    file = tmp_path / "workers.toml"
    file.write_text(f'[[worker]]\nname = "mail"\nqueue = "emails"\n{change}\n', "utf-8")
    refused = CliRunner().invoke(headrace, ["autoscale", "run", "--once"], env={"HEADRACE_AUTOSCALE_TYPES": str(file)})
    assert refused.exit_code == 3
    assert words in refused.output
    assert "Nothing is scaled" in refused.output
