"""The queue commands against a real Valkey."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.cli import dead, main
from headrace.cli.doctor_valkey import check_valkey
from headrace.cli.queue_table import COLUMNS
from headrace.errors import QueueFull
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue import keys
from headrace.queue.client import Client, QueueOptions, SyncClient
from headrace.queue.registry import RunningTask, WorkerRegistration
from headrace.queue.state import QueueState, read_states
from headrace.queue.tasks import TaskRegistry
from headrace.valkey.connect import Valkey, connect
from headrace.valkey.scripts import run as run_script
from tests.conftest import ODD_NAMES, wait_until

SHARDS = 2
HOUR_MS = 3_600_000
REF = ODD_NAMES
NAMES = (REF.org, REF.project, REF.env, REF.queue)
ENV = NAMES[:3]
EMAILS = QueueRef("acme", "shop", "prod", "emails")


class Shell:
    """Runs commands in an empty folder, against one Valkey."""

    def __init__(self, valkey: Valkey, url: str) -> None:
        self.valkey = valkey
        self.url = url
        self.client = SyncClient(url)

    def run(self, *arguments: str, input: bytes | None = None) -> Result:
        return CliRunner().invoke(main.headrace, arguments, input=input, env={"HEADRACE_REDIS_URL": self.url})

    def ok(self, *arguments: str, input: bytes | None = None) -> str:
        result = self.run(*arguments, input=input)
        assert result.exit_code == 0, result.output
        return result.stdout

    def document(self, *arguments: str, input: bytes | None = None) -> dict[str, Any]:
        return json.loads(self.ok(*arguments, "--json", input=input).splitlines()[-1])

    def refused(self, *arguments: str, code: int = 1) -> str:
        result = self.run(*arguments)
        assert (result.exit_code, result.stdout) == (code, ""), result.output
        return result.stderr

    def state(self, ref: QueueRef = REF) -> QueueState:
        return next(state for state in read_states(self.valkey, SHARDS) if state.ref == ref)

    def dequeue(self, ref: QueueRef = REF) -> LeasedJob:
        stubs = self.client.options.make_stubs()
        [job] = run_script(self.valkey, stubs.dequeue(stubs.find_shard(ref), 1, HOUR_MS))
        return job

    def bury(self, error: str, ref: QueueRef = REF) -> None:
        stubs = self.client.options.make_stubs()
        run_script(self.valkey, stubs.bury(stubs.find_shard(ref), [(self.dequeue(ref), error)]))


@pytest.fixture
def shell(valkey: Valkey, valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Shell(valkey, valkey_url)


class TestEnqueue:
    def test_every_option_reaches_the_job(self, shell: Shell) -> None:
        told = shell.document(
            *("enqueue", *NAMES, "send", "--payload", "käse", "--id", "j:1", "--delay", "1h", "--priority", "-3"),
            *("--ttl", "2d", "--max-attempts", "7", "--flow", "f", "--flow-type", "ft"),
        )
        assert told == {"accepted": 1, "known": 0, "ids": ["j:1"]}
        job = shell.client.get(REF.environment, "j:1")
        assert job is not None
        assert (job.queue, job.task, job.payload, job.state) == (REF.queue, "send", "käse".encode(), "scheduled")
        assert (job.priority, job.max_attempts, job.flow, job.flow_type) == (-3, 7, "f", "ft")
        assert job.enqueued_at_ms is not None
        assert job.due_at_ms == pytest.approx(job.enqueued_at_ms + 3_600_000, abs=1)
        assert job.expires_at_ms == pytest.approx(job.enqueued_at_ms + 2 * 86_400_000, abs=1)

    def test_the_payload_of_a_file_or_of_standard_input_is_taken_as_it_is(self, shell: Shell, tmp_path: Path) -> None:
        (tmp_path / "body").write_bytes(b"\x00\xff\n")
        shell.ok("enqueue", *NAMES, "send", "--payload-file", "body", "--id", "1")
        shell.ok("enqueue", *NAMES, "send", "--payload-file", "-", "--id", "2", input=b"\xfe\n")
        found = [shell.client.get(REF.environment, job_id) for job_id in ("1", "2")]
        assert [job and job.payload for job in found] == [b"\x00\xff\n", b"\xfe\n"]

    def test_the_same_id_twice_is_one_job(self, shell: Shell) -> None:
        assert shell.ok("enqueue", *NAMES, "send", "--id", "1") == "accepted 1\n"
        assert "nothing was added" in shell.ok("enqueue", *NAMES, "send", "--id", "1")
        assert shell.document("enqueue", *NAMES, "send", "--id", "1")["known"] == 1
        assert shell.state().depth == 1

    def test_many_at_once(self, shell: Shell) -> None:
        assert shell.ok("enqueue", *NAMES, "send", "--count", "2500") == "accepted 2500 jobs\n"
        assert len(set(shell.document("enqueue", *NAMES, "send", "--count", "3")["ids"])) == 3
        assert shell.state().depth == 2503

    @pytest.mark.parametrize(
        "options",
        [
            ["--delay", "5"],
            ["--delay", "5 weeks"],
            ["--ttl", "0s"],
            ["--count", "0"],
            ["--id", "1", "--count", "2"],
            ["--payload", "a", "--payload-file", "-"],
        ],
    )
    def test_a_wrong_command_line_writes_nothing(self, shell: Shell, options: list[str]) -> None:
        assert "Error: " in shell.refused("enqueue", *NAMES, "send", *options, code=2)
        assert shell.valkey.dbsize() == 0

    @pytest.mark.parametrize(
        "arguments",
        [
            [*NAMES, "send", "--priority", "101"],
            [*NAMES, "send", "--max-attempts", "0"],
            [*NAMES, "tab\there"],
            ["", "p", "e", "q", "send"],
            ["o", "p", "e", "q" * 129, "send"],
        ],
    )
    def test_what_is_out_of_bounds_is_refused_in_words(self, shell: Shell, arguments: list[str]) -> None:
        assert "Nothing was written" in shell.refused("enqueue", *arguments)
        assert shell.valkey.dbsize() == 0

    def test_a_server_that_does_not_answer_has_its_own_exit_code(self, shell: Shell) -> None:
        shell.url = "redis://127.0.0.1:1/0"
        assert "is not responding" in shell.refused("enqueue", *NAMES, "send", code=4)


class TestQueues:
    def test_one_row_per_queue(self, shell: Shell) -> None:
        shell.client.enqueue_many(EMAILS, [NewJob("send", b"x" * 1024), NewJob("send", delay_ms=HOUR_MS)])
        shell.client.enqueue(REF, NewJob("send"))
        shell.dequeue()
        shell.client.limits(REF, 3)
        shell.client.pause(REF)
        shell.client.close_queue(REF)
        head, *rows = shell.ok("queues").splitlines()
        assert head.split() == list(COLUMNS)
        odd, emails = rows  # by name
        assert odd.startswith(REF.org)
        assert odd.split()[-12:] == ["0", "0", "0", "0", "1", "3", "0", "-", "0", "B", "paused", "closed"]
        assert emails.split()[:9] == ["acme/shop/prod", "emails", "1", "0", "1", "1", "0", "-", "0"]
        assert emails.endswith("1.0 KiB")

    def test_caps_of_one_queue(self, shell: Shell) -> None:
        """Without PostgreSQL a full queue refuses."""
        shell.client.enqueue(EMAILS, NewJob("send"))
        names = (EMAILS.org, EMAILS.project, EMAILS.env, EMAILS.queue)
        assert shell.ok("caps", *names, "--items", "1").endswith(": 1 jobs\n")
        with pytest.raises(QueueFull):
            shell.client.enqueue(EMAILS, NewJob("send"))
        assert shell.ok("caps", *names).endswith(": from the settings\n")
        assert shell.client.enqueue(EMAILS, NewJob("send"))

    def test_by_flow(self, shell: Shell) -> None:
        jobs = [NewJob("send", flow="nightly", flow_type="batch"), NewJob("send"), NewJob("send")]
        shell.client.enqueue_many(EMAILS, jobs)
        [first, second] = shell.document("queues", "--by-flow")["flows"]
        assert (first["flow"], first["warm"], first["cold"], first["total"]) == ("", 2, 0, 2)
        assert (second["flow"], second["flow_type"], second["total"]) == ("nightly", "batch", 1)
        assert "nightly" in shell.ok("queues", "--by-flow", "--queue", EMAILS.queue)
        assert "nightly" not in shell.ok("queues", "--by-flow", "--queue", "other")

    def test_json_and_filters(self, shell: Shell) -> None:
        others = [QueueRef("acme", "shop", env, name) for env in ("prod", "test") for name in ("emails", "sms")]
        for ref in (*others, REF):
            shell.client.enqueue(ref, NewJob("send"))

        def list_queues(*options: str) -> list[QueueRef]:
            names = ("org", "project", "env", "queue")
            rows = shell.document("queues", *options)["queues"]
            return [QueueRef(*(row[name] for name in names)) for row in rows]

        assert list_queues() == sorted([*others, REF])
        assert list_queues("--org", REF.org, "--queue", REF.queue) == [REF]
        assert list_queues("--env", "test") == others[2:]
        assert list_queues("--project", "shop", "--queue", "emails") == [others[0], others[2]]
        assert list_queues("--org", "nobody") == []
        [row] = shell.document("queues", "--org", REF.org)["queues"]
        assert (row["depth"], row["odometers"], row["limit"], row["paused"]) == (1, {"enqueue": 1}, None, False)
        assert 0 <= row["oldest_age_ms"] < HOUR_MS
        assert "per_s" not in row

    def test_to_look_at_an_empty_server_writes_nothing(self, shell: Shell) -> None:
        assert len(shell.ok("queues").splitlines()) == 1
        assert shell.valkey.dbsize() == 0

    def test_another_number_of_shards_is_refused(self, shell: Shell) -> None:
        shell.client.enqueue(REF, NewJob("send"))
        assert "Set queue.shards = 2" in shell.refused("--set", "queue.shards=3", "queues", code=3)

    @pytest.mark.parametrize("options", [[], ["--json"]])
    def test_watch_shows_rates_until_it_is_interrupted(self, shell: Shell, options: list[str]) -> None:
        shell.client.enqueue(EMAILS, NewJob("send"))
        command = [sys.executable, "-m", "headrace", "queues", "--watch", "--every", "100ms", *options]
        environ = {**os.environ, "HEADRACE_REDIS_URL": shell.url}
        watching = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert watching.stdout is not None
        lines: list[str] = []

        def sees_a_rate() -> bool:
            shell.client.enqueue(EMAILS, NewJob("send"))
            assert watching.stdout is not None
            lines.append(watching.stdout.readline())
            return _enqueued_per_s(lines[-1], bool(options)) > 0

        try:
            wait_until(sees_a_rate, "a rate")
            watching.send_signal(signal.SIGINT)
            _, err = watching.communicate(timeout=60)
        finally:
            watching.kill()
        assert (watching.returncode, err) == (0, "")


def _enqueued_per_s(line: str, as_json: bool) -> float:
    """Return the rate in a line of output; 0 if it has none."""
    if as_json:
        rates = json.loads(line)["queues"][0]["per_s"]
        return rates["enqueued"] if rates else 0.0
    cells = line.split()
    return float(cells[-3]) if cells and cells[0] == "acme/shop/prod" and cells[-3] != "-" else 0.0


class TestJob:
    def test_a_waiting_job(self, shell: Shell) -> None:
        shell.client.enqueue(REF, NewJob("send", "käse".encode() * 400, id="j:1", flow="order 7"))
        told = shell.ok("job", *ENV, "j:1")
        for part in ("ready", REF.queue, "0 of 5", "order 7", "2.0 KiB", "käsekäse", " UTC"):
            assert part in told
        document = shell.document("job", *ENV, "j:1")
        assert (document["state"], document["queue"], document["error"]) == ("ready", REF.queue, None)
        assert document["payload"]["bytes"] == 2000
        assert document["payload"]["cut"]
        assert ("käse" * 400).startswith(document["payload"]["text"])

    def test_a_dead_job_shows_its_traceback_and_nothing_that_a_terminal_obeys(self, shell: Shell) -> None:
        shell.client.enqueue(REF, NewJob("send", b"\x1b[2J", id="1"))
        shell.bury('Traceback …\n  File "app.py"\nValueError: \x1b[31mred')
        told = shell.ok("job", *ENV, "1")
        assert told.endswith('Traceback …\n  File "app.py"\nValueError: \\x1b[31mred\n')
        assert "1b5b324a" in told
        assert "\x1b" not in told
        assert shell.document("job", *ENV, "1")["payload"] == {"bytes": 4, "hex": "1b5b324a", "cut": False}

    def test_a_done_job_is_known_for_a_while(self, shell: Shell) -> None:
        shell.client.enqueue(REF, NewJob("send", id="1"))
        stubs = shell.client.options.make_stubs()
        run_script(shell.valkey, stubs.ack(stubs.find_shard(REF), [(shell.dequeue(), 1)], keep_ms=HOUR_MS))
        assert shell.document("job", *ENV, "1")["state"] == "done"
        assert "done" in shell.ok("job", *ENV, "1")

    def test_an_unknown_job(self, shell: Shell) -> None:
        assert "There is no job 'nobody'" in shell.refused("job", *ENV, "nobody")


class TestCancel:
    def test_a_waiting_job_is_taken_back(self, shell: Shell) -> None:
        shell.client.enqueue_many(REF, [NewJob("send", id="1"), NewJob("send", id="2", delay_ms=HOUR_MS)])
        assert shell.ok("cancel", *ENV, "1") == "cancelled 1 (was ready)\n"
        assert shell.ok("cancel", *ENV, "2") == "cancelled 2 (was scheduled)\n"
        assert shell.state().odometers == {"enqueue": 2, "cancel": 2}
        assert "There is no job '1'" in shell.refused("cancel", *ENV, "1")

    def test_a_running_job_is_left_alone(self, shell: Shell) -> None:
        shell.client.enqueue(REF, NewJob("send", id="1"))
        shell.dequeue()
        assert "is running; only waiting jobs" in shell.refused("cancel", *ENV, "1")
        assert shell.state().running == 1

    def test_a_running_job_is_cancelled_on_request(self, shell: Shell) -> None:
        shell.client.enqueue(REF, NewJob("send", id="1"))
        shell.dequeue()
        assert shell.ok("cancel", *ENV, "1", "--running") == "requested cancellation of 1 (running)\n"
        assert "cancellation" in shell.ok("job", *ENV, "1")
        shell.client.enqueue(REF, NewJob("send", id="2"))
        assert shell.ok("cancel", *ENV, "2", "--running") == "cancelled 2 (was ready)\n"


def test_redrive_takes_the_dead_jobs_that_are_meant(shell: Shell) -> None:
    for number, (task, error) in enumerate([("a", "timeout"), ("a", "refused"), ("b", "timeout"), ("b", "other")]):
        shell.client.enqueue(REF, NewJob(task, id=str(number)))
        shell.bury(error)
    assert shell.document("redrive", *NAMES, "--task", "a", "--error", "time") == {"redriven": 1, "remaining": 0}
    assert shell.document("redrive", *NAMES, "--id", "3", "--id", "9") == {"redriven": 1, "remaining": 0}
    assert shell.ok("redrive", *NAMES) == "2 jobs redriven\n"
    assert (shell.state().dead, shell.state().depth) == (0, 4)


def test_redrive_in_parts(shell: Shell) -> None:
    for number in range(5):
        shell.client.enqueue(REF, NewJob("a" if number % 2 else "b", id=str(number)))
        shell.bury("timeout")
    assert shell.document("redrive", *NAMES, "--dry-run", "--task", "b") == {"would_redrive": 3}
    assert shell.document("redrive", *NAMES, "--dry-run", "--limit", "2") == {"would_redrive": 2}
    assert shell.state().dead == 5
    assert shell.document("redrive", *NAMES, "--task", "b", "--limit", "2") == {"redriven": 2, "remaining": 0}
    assert [job["id"] for job in shell.document("dead", "list", *NAMES)["jobs"]] == ["4", "3", "1"], "oldest first"
    assert shell.document("redrive", *NAMES, "--limit", "9") == {"redriven": 3, "remaining": 0}
    shell.refused("redrive", *NAMES, "--limit", "1", "--id", "1", code=2)


def test_dead_jobs_are_listed_and_deleted(shell: Shell) -> None:
    for number in range(3):
        shell.client.enqueue(REF, NewJob("send", b"xy", id=str(number)))
        shell.bury(f"Traceback ...\nTimeout: after {number} s\x1b[2J")
    listed = shell.document("dead", "list", *NAMES, "--limit", "2")
    assert [(job["id"], job["bytes"]) for job in listed["jobs"]] == [("2", 2), ("1", 2)]
    assert listed["more"]
    text = shell.ok("dead", "list", *NAMES, "--id", "0")
    assert "Timeout: after 0 s\\x1b[2J" in text
    assert "\x1b" not in text
    assert "UTC" in text
    assert shell.document("dead", "delete", *NAMES, "--error", "after 1 s") == {"removed": 1}
    assert shell.document("discard", *NAMES) == {"removed": 2}
    assert "There is no queue" in shell.refused("dead", "list", "acme", "shop", "prod", "nothing")


def test_a_terminal_is_asked_before_jobs_are_deleted(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        shell.client.enqueue(REF, NewJob("send"))
        shell.bury("failed")
    monkeypatch.setattr(dead, "is_interactive", lambda: True)
    refused = shell.run("dead", "delete", *NAMES, input=b"n\n")
    assert refused.exit_code == 1
    assert f"Delete 2 dead jobs of {REF.queue} permanently?" in refused.stderr
    assert shell.state().dead == 2
    assert "2 jobs removed" in shell.ok("dead", "delete", *NAMES, input=b"y\n")


class TestContext:
    def test_names_can_be_left_out(self, shell: Shell) -> None:
        shell.client.enqueue(EMAILS, NewJob("send", id="1"))
        assert "no context" in shell.ok("context", "show")
        assert "there is no context" in shell.refused("pause", "emails", code=2)
        assert shell.ok("context", "use", "acme/shop/prod") == "commands use acme/shop/prod\n"
        assert shell.document("context", "show")["env"] == "prod"
        shell.ok("pause", "emails")
        assert shell.state(EMAILS).paused
        shell.ok("enqueue", "emails", "send", "--id", "2")
        assert shell.document("job", "2")["queue"] == "emails"
        shell.ok("limits", "--limit", "3")
        shell.ok("limits", "emails", "--limit", "2")
        assert shell.document("limits") == {
            **{"limit": 3, "burst": None, "running": 0},
            "queues": [{"queue": "emails", "limit": 2, "running": 0}],
        }
        assert shell.state(EMAILS).limit == 2

    def test_names_given_are_those_that_count(self, shell: Shell) -> None:
        shell.ok("context", "use", "other/shop/prod")
        shell.client.enqueue(EMAILS, NewJob("send"))
        shell.ok("pause", "acme", "shop", "prod", "emails")
        assert shell.state(EMAILS).paused
        assert "Expected ORG PROJECT ENV QUEUE" in shell.refused("pause", "acme", "emails", code=2)

    def test_names_with_a_slash(self, shell: Shell) -> None:
        shell.client.enqueue(REF, NewJob("send"))
        shell.ok("context", "use", *ENV)
        shell.ok("pause", REF.queue)
        assert shell.state().paused

    def test_the_variable_has_precedence(self, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
        shell.ok("context", "use", "acme/shop/prod")
        monkeypatch.setenv("HEADRACE_CONTEXT", "acme/shop/test")
        assert shell.document("context", "show") == {
            **{"org": "acme", "project": "shop", "env": "test"},
            "source": "HEADRACE_CONTEXT",
        }
        monkeypatch.setenv("HEADRACE_CONTEXT", "acme")
        assert "'acme' is no environment" in shell.refused("context", "show", code=2)
        monkeypatch.delenv("HEADRACE_CONTEXT")
        shell.ok("context", "clear")
        shell.ok("context", "clear")
        assert shell.document("context", "show")["org"] is None

    def test_a_damaged_file_is_reported(self, shell: Shell, tmp_path: Path) -> None:
        shell.ok("context", "use", "acme/shop/prod")
        (tmp_path / "config" / "headrace" / "context.json").write_text("[1")
        assert "cannot be read" in shell.refused("pause", "emails", code=2)
        shell.ok("context", "use", "acme/shop/prod")

    @pytest.mark.parametrize("names", ["acme", "a/b/c/d", "a//c", "a/b/c\n"])
    def test_invalid_environments_are_refused(self, shell: Shell, names: str) -> None:
        shell.refused("context", "use", names, code=2)
        assert shell.document("context", "show")["org"] is None


def test_workers_and_what_they_run(shell: Shell, valkey_url: str) -> None:
    assert shell.ok("workers") == "no worker is alive\n"
    shell.client.enqueue(REF, NewJob("send", id="job 1"))
    job = shell.dequeue()

    async def report() -> None:
        async with Client(valkey_url) as client:
            worker = WorkerRegistration(client.redis, "worker-1")
            tasks = TaskRegistry(plugin="mail")
            for name in "abcdef":
                tasks.task(name)(print)
            await worker.report(tasks, [RunningTask(job, 0)])

    asyncio.run(report())
    found = shell.document("workers")
    [worker] = found["workers"]
    assert (worker["name"], worker["plugin"], worker["tasks"], worker["running"]) == (
        "worker-1",
        "mail",
        [*"abcdef"],
        1,
    )
    assert found["running"][0]["queue"] == dict(zip(("org", "project", "env", "queue"), NAMES, strict=True))
    text = shell.ok("workers")
    assert "a, b, c, d and 2 more" in text
    assert "worker-1" in text
    assert "job 1" in shell.ok("workers", "--running")


def test_settings_in_effect_are_shown(shell: Shell) -> None:
    shell.ok("--set", "queue.warm_max_items=77", "config", "apply")
    shown = shell.document("config", "show")["settings"]
    assert shown["queue.warm_max_items"] == {"value": "77", "origin": "stored in Valkey"}
    assert shown["queue.lease"]["origin"] == "default"


class TestControl:
    def test_limits_are_shown(self, shell: Shell) -> None:
        shell.client.enqueue(EMAILS, NewJob("send"))
        shell.client.limits(EMAILS, 4)
        shell.client.limits(EMAILS.environment, 2, 1.5)
        shell.dequeue(EMAILS)
        lines = shell.ok("limits", "acme", "shop", "prod").splitlines()
        assert [line.split()[-2:] for line in lines[1:]] == [["1.5", "1"], ["4", "1"]]
        assert shell.document("limits", "acme", "shop", "prod", "emails")["queues"][0]["running"] == 1
        assert "There is no queue" in shell.refused("limits", "acme", "shop", "prod", "other")

    def test_pause_and_resume(self, shell: Shell) -> None:
        shell.client.enqueue(EMAILS, NewJob("send"))
        names = ("acme", "shop", "prod", "emails")
        assert shell.ok("pause", *names) == "paused acme / shop / prod / emails\n"
        assert shell.state(EMAILS).paused
        assert shell.ok("resume", *names) == "resumed acme / shop / prod / emails\n"
        assert not shell.state(EMAILS).paused

    def test_close_and_open(self, shell: Shell) -> None:
        shell.client.enqueue(REF, NewJob("send"))
        shell.ok("close", *NAMES)
        assert "accepts no jobs" in shell.refused("enqueue", *NAMES, "send")
        shell.ok("open", *NAMES)
        shell.ok("enqueue", *NAMES, "send")
        assert shell.state().depth == 2

    def test_limits_of_a_queue(self, shell: Shell) -> None:
        shell.client.enqueue(REF, NewJob("send"))
        shell.ok("limits", *NAMES, "--limit", "4")
        assert shell.state().limit == 4
        shell.ok("limits", *NAMES, "--limit", "none")
        assert shell.state().limit is None

    def test_limits_of_an_environment(self, shell: Shell) -> None:
        assert shell.ok("limits", "acme", "shop", "prod", "--limit", "2", "--burst", "1.5") == (
            "limit 2 × 1.5 for acme / shop / prod\n"
        )
        env = EnvRef("acme", "shop", "prod")
        shown: Any = shell.valkey.hmget(keys.env(env.shard(SHARDS), env), "limit", "burst")
        assert shown == [b"2", b"1.5"]

    @pytest.mark.parametrize(
        ("options", "code"),
        [
            ([*NAMES, "--burst", "2"], 2),
            ([*ENV, "--burst", "2"], 2),
            ([*NAMES, "--limit", "many"], 2),
            ([*NAMES, "--limit", "1", "--burst", "2"], 2),
            ([*NAMES, "--limit", "-1"], 1),
            ([*ENV, "--limit", "1", "--burst", "nan"], 1),
            (["a", "b", "c\n", "--limit", "1"], 1),
        ],
    )
    def test_limits_that_make_no_sense(self, shell: Shell, options: list[str], code: int) -> None:
        shell.refused("limits", *options, code=code)
        assert shell.valkey.dbsize() == 0

    @pytest.mark.parametrize("command", [["pause"], ["resume"], ["close"], ["open"], ["limits", "--limit", "1"]])
    def test_an_unknown_queue(self, shell: Shell, command: list[str]) -> None:
        assert "There is no queue 'emails'" in shell.refused(*command, "acme", "shop", "prod", "emails")
        assert shell.valkey.keys() == [keys.SHARDS.encode()]


async def check_shards(client: Client) -> None:
    await client.check_shards()
    await client.close()


class TestMetrics:
    def test_off_and_on(self, shell: Shell) -> None:
        shell.client.enqueue(REF, NewJob("send"))
        told = shell.document("metrics", "off")
        assert (told["enabled"], [one["enabled"] for one in told["shards"]]) == (False, [False, False])
        shell.client.enqueue(REF, NewJob("send"))
        mine = shell.document("metrics", "status")["shards"][REF.environment.shard(SHARDS)]
        assert (mine["stream_length"], mine["seq"]) == (1, 2)  # the second event was counted but not written
        assert shell.document("metrics", "on")["enabled"]
        assert not list(shell.valkey.scan_iter("*metrics:enabled"))

    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_off_before_the_queue_is_created(self, shell: Shell, asynchronous: bool) -> None:
        """The shards that exist later read the flag, however many there are."""
        shell.ok("metrics", "off")
        options = QueueOptions(shards=4)
        if asynchronous:
            asyncio.run(check_shards(Client(shell.url, options)))
        else:
            SyncClient(shell.url, options).check_shards()
        assert [one["enabled"] for one in shell.document("metrics", "status")["shards"]] == [False] * 4
        assert shell.document("metrics", "on")["enabled"]
        assert not list(shell.valkey.scan_iter("*metrics:enabled"))

    def test_status_as_a_table_shows_a_broken_stream_too(self, shell: Shell) -> None:
        shell.valkey.set(keys.metrics(1), "not a stream")
        assert shell.ok("metrics", "status").splitlines() == [
            "shard  events  stream length  last event",
            "0      on      0              0",
            "1      on      not a stream   0",
        ]


def test_doctor_says_whether_valkey_keeps_jobs(shell: Shell) -> None:
    def checks() -> dict[str, tuple[bool, str, bool]]:
        found = json.loads(shell.run("doctor", "--json").stdout.splitlines()[-1])["checks"]
        return {one["check"]: (one["ok"], one["found"], bool(one["advice"])) for one in found}

    assert checks()["redis maxmemory-policy"] == (True, "noeviction", False)
    assert checks()["redis appendonly"] == (True, "yes", False)
    try:
        shell.valkey.config_set("maxmemory-policy", "allkeys-lru")
        shell.valkey.config_set("appendonly", "no")
        assert checks()["redis maxmemory-policy"] == (False, "allkeys-lru", True)
        assert checks()["redis appendonly"] == (True, "no", True)
        shell.valkey.config_set("maxmemory-policy", "volatile-ttl")
        assert checks()["redis maxmemory-policy"] == (True, "volatile-ttl", True)
    finally:
        shell.valkey.config_set("maxmemory-policy", "noeviction")
        shell.valkey.config_set("appendonly", "yes")


def test_the_commands_work_the_same_on_a_cluster(
    any_valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with connect(any_valkey_url) as valkey:
        shell = Shell(valkey, any_valkey_url)
        shell.ok("enqueue", *NAMES, "send", "--id", "1")
        assert [row["depth"] for row in shell.document("queues")["queues"]] == [1]
        assert sum(one["stream_length"] for one in shell.document("metrics", "off")["shards"]) == 1
        assert shell.document("metrics", "on")["enabled"]
        shell.ok("pause", *NAMES)
        shell.ok("cancel", *ENV, "1")
    *others, memory = check_valkey(any_valkey_url, SHARDS)
    assert [one.found for one in others][:4] == ["none", "none", "noeviction", "yes"]
    assert memory.ok
    assert "used, no maxmemory; no forecast yet" in memory.found
