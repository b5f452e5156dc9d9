"""`headrace job` and `headrace cancel`: show or cancel one job."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from typing import Any

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.arguments import env_arguments
from headrace.cli.formatting import ABSENT, escape_control, format_size, format_time, is_printable
from headrace.cli.operation_log import record_operation
from headrace.cli.output import json_option, print_json, print_table
from headrace.cli.queue_client import open_queue_client
from headrace.errors import JobNotWaiting, UnknownJob
from headrace.model.arguments import parse_arguments, parse_progress
from headrace.model.envelope import JSON_CODEC
from headrace.model.job import CANCELLABLE_STATES, JobInfo, JobState, describe_uncancelled
from headrace.model.names import EnvRef

PREVIEW_BYTES = 1024
MAX_VALUE_CHARS = 200  # of an argument or header


@click.command()
@env_arguments
@click.argument("job_id", metavar="ID")
@json_option
@pass_invocation
def job(invocation: Invocation, env: EnvRef, job_id: str, as_json: bool) -> None:
    """Show a job: state, arguments, payload and last error."""
    with open_queue_client(invocation.settings) as client:
        found = client.get(env, job_id)
    if found is None:
        raise build_unknown_job_error(env, job_id)
    if as_json:
        print_json(build_document(found))
    else:
        print_table(["field", "value"], build_rows(found))
        if found.error is not None:
            click.echo(f"\n{escape_control(found.error)}")


@click.command()
@env_arguments
@click.argument("job_id", metavar="ID")
@click.option("--running", is_flag=True, help="Also cancel a running job: its worker stops it.")
@pass_invocation
def cancel(invocation: Invocation, env: EnvRef, job_id: str, running: bool) -> None:
    """Cancel a waiting or running job.

    A dead job, and without --running a running one, is left unchanged (exit code 1). A running job may still succeed
    before its worker stops it.
    """
    settings = invocation.settings
    with open_queue_client(settings) as client, record_operation(settings, "job.cancel", env, job=job_id):
        before = client.cancel(env, job_id, running=running)
    if before is None:
        raise build_unknown_job_error(env, job_id)
    if before is JobState.RUNNING and running:
        click.echo(f"requested cancellation of {job_id} (running)")
        return
    if before not in CANCELLABLE_STATES:
        raise JobNotWaiting(describe_uncancelled(job_id, before))
    click.echo(f"cancelled {job_id} (was {before})")


def build_unknown_job_error(env: EnvRef, job_id: str) -> UnknownJob:
    return UnknownJob(
        f"There is no job {job_id!r} in {env.org} / {env.project} / {env.env}. It never existed, was cancelled or "
        "removed, expired, or finished longer than queue.keep_done ago."
    )


def build_rows(found: JobInfo) -> list[list[str]]:
    rows = [["id", found.id], ["state", found.state]]
    if found.state is JobState.DONE:
        return rows
    shown, _, text = preview_payload(found.payload)
    more = " …" if len(found.payload) > PREVIEW_BYTES else ""
    return [
        *rows,
        ["queue", found.queue],
        ["task", found.task],
        ["attempts", f"{found.attempts} of {found.max_attempts}"],
        *([["cancellation", "requested"]] if found.cancel_requested else []),
        ["priority", str(found.priority)],
        ["enqueued", format_time(found.enqueued_at_ms)],
        ["due", format_time(found.due_at_ms)],
        ["expires", format_time(found.expires_at_ms)],
        ["flow", found.flow or ABSENT],
        ["flow type", found.flow_type or ABSENT],
        *_build_progress_rows(found),
        *([] if found.codec == JSON_CODEC else [["codec", escape_control(found.codec)]]),
        *_build_value_rows("header", found.headers),
        *_build_value_rows("argument", parse_arguments(found.payload, found.codec) or {}),
        ["payload", format_size(len(found.payload)) + ("" if text or not shown else ", in hexadecimal")],
        *([["", shown + more]] if shown else []),
    ]


def _build_progress_rows(found: JobInfo) -> list[list[str]]:
    progress = parse_progress(found.progress)
    if progress is None or isinstance(progress, str):
        return [] if progress is None else [["progress", escape_control(progress)]]
    done, total, message = (progress.get(name) for name in ("done", "total", "message"))
    count = "" if done is None else f"{done} of {total}" if total is not None else str(done)
    return [["progress", escape_control(", ".join(str(part) for part in (count, message) if part))]]


def _build_value_rows(what: str, values: Mapping[str, object]) -> list[list[str]]:
    rows: list[list[str]] = []
    for name, value in values.items():
        text = value if isinstance(value, str) and what == "header" else json.dumps(value, ensure_ascii=False)
        more = " …" if len(text) > MAX_VALUE_CHARS else ""
        rows.append([escape_control(f"{what} {name}"), escape_control(text[:MAX_VALUE_CHARS]) + more])
    return rows


def build_document(found: JobInfo) -> dict[str, Any]:
    shown, cut, text = preview_payload(found.payload)
    return {
        "id": found.id,
        "state": found.state,
        "org": found.environment.org,
        "project": found.environment.project,
        "env": found.environment.env,
        "queue": found.queue or None,
        "task": found.task or None,
        "attempts": found.attempts,
        "max_attempts": found.max_attempts,
        "priority": found.priority,
        "enqueued_at_ms": found.enqueued_at_ms,
        "due_at_ms": found.due_at_ms,
        "expires_at_ms": found.expires_at_ms,
        "flow": found.flow or None,
        "flow_type": found.flow_type or None,
        "payload": {"bytes": len(found.payload), "text" if text else "hex": shown, "cut": cut},
        "error": found.error,
        "cancel_requested": found.cancel_requested,
        "args": parse_arguments(found.payload, found.codec),
        "headers": dict(found.headers),
        "codec": found.codec,
        "progress": parse_progress(found.progress),
    }


def preview_payload(payload: bytes) -> tuple[str, bool, bool]:
    """Return the start of a payload, whether it was cut, and whether it is text (otherwise hexadecimal)."""
    head, cut = payload[:PREVIEW_BYTES], len(payload) > PREVIEW_BYTES
    try:
        # Not final if cut, because the cut may split a character.
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=not cut)
    except UnicodeDecodeError:
        return head.hex(), cut, False
    return (text, cut, True) if is_printable(text) else (head.hex(), cut, False)
