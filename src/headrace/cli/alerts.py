"""`headrace alerts`: runs the evaluator, and manages rules, silences and incidents."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import click

from headrace.alerts import records
from headrace.alerts.channel_policy import ChannelPolicy
from headrace.alerts.evaluator import Evaluator, EvaluatorOptions
from headrace.alerts.lease import EvaluatorLease
from headrace.alerts.messages import AlertMessage
from headrace.alerts.outbox import Outbox, OutboxOptions
from headrace.alerts.plan import apply_changes, diff_plan, read_plan
from headrace.alerts.records import ANY_ENVIRONMENT, Incident, Silence
from headrace.alerts.rules import Rule, rule_from_document
from headrace.alerts.senders import SendOptions, send
from headrace.alerts.service import AlertService, AlertServiceOptions
from headrace.api import audit_log
from headrace.api.access import GLOBAL_SCOPE, KeyScope
from headrace.app.endpoints import resolve_endpoints
from headrace.cli import Invocation, pass_invocation
from headrace.cli.arguments import duration_ms_type, env_arguments
from headrace.cli.formatting import ABSENT, escape_control, format_second
from headrace.cli.logs import configure_logs
from headrace.cli.metrics_server import metrics_port_option, serve_loop_metrics
from headrace.cli.output import json_option, print_json, print_json_or_text, print_table
from headrace.cli.signals import install_stop_event
from headrace.cli.transactions import open_transaction
from headrace.errors import HeadraceError
from headrace.model.names import EnvRef
from headrace.model.time import format_iso
from headrace.postgres.connect import Connection, open_pool
from headrace.runtime.backoff import Backoff
from headrace.settings import Settings
from headrace.warehouse.connect import connect
from headrace.webhook.guard import AddressPolicy

CONNECTIONS = 16
MAX_INCIDENTS = 500


@click.group()
def alerts() -> None:
    """Evaluate alert rules and send notifications."""


@alerts.command()
@metrics_port_option("alerts.metrics_port")
@pass_invocation
def run(invocation: Invocation, metrics_port: int | None) -> None:
    """Run the evaluator: evaluate rules and send notifications.

    Several may run: one is active and the others are on standby.
    """
    settings = invocation.settings
    configure_logs(settings.log)
    endpoints = resolve_endpoints(settings, "postgres", "clickhouse")
    given = settings.alerts
    with open_pool(endpoints.postgres, max_size=CONNECTIONS) as pool:
        lease = EvaluatorLease(pool, given.lease)
        options = EvaluatorOptions(given.max_lag, given.query_timeout)
        timeout_s = int(given.query_timeout) + 2
        database = settings.warehouse.database
        evaluator = Evaluator(pool, lease, lambda: connect(endpoints.clickhouse, database, timeout_s), options)
        backoff = Backoff(given.retry_interval, longest_s=given.max_retry_delay)
        outbox = Outbox(pool, build_send_options(settings), OutboxOptions(backoff, given.give_up))
        service = AlertService(
            pool, lease, evaluator, outbox, AlertServiceOptions(given.every, given.lease, given.keep)
        )
        with serve_loop_metrics(settings, metrics_port, given.metrics_port, service.metrics):
            service.run_forever(install_stop_event())


@alerts.command("list")
@json_option
@pass_invocation
def list_all(invocation: Invocation, as_json: bool) -> None:
    """List all rules and the open incidents."""
    with open_transaction(invocation.settings) as conn:
        found = records.list_rule_records(conn)
        incidents = records.list_incidents(conn, ANY_ENVIRONMENT, is_open=True, limit=MAX_INCIDENTS)
    if as_json:
        print_json(
            {
                "rules": [
                    {
                        **asdict(each.rule),
                        "channels": list(each.rule.channels),
                        "created_at": format_iso(each.created_at),
                        "updated_at": format_iso(each.updated_at),
                        "last_fired_at": None if each.last_fired_at is None else format_iso(each.last_fired_at),
                    }
                    for each in found
                ],
                "incidents": [
                    {
                        **{"id": each.id, "rule": each.rule["name"], "org": each.org, "project": each.project},
                        **{"env": each.env, "queue": each.queue, "state": each.state, "value": each.value},
                        "fired_at": format_iso(each.fired_at),
                        "current_value": each.current_value,
                        "current_at": None if each.current_at is None else format_iso(each.current_at),
                    }
                    for each in incidents
                ],
            }
        )
        return
    firing = Counter(each.rule_id for each in incidents)
    print_table(
        ["rule", "environment", "condition", "severity", "state", "last fired", "updated", "created", "channels"],
        [
            [escape_control(each.rule.name), _format_env(each.environment), each.rule.format_condition(),
             each.rule.severity, _format_state(each.rule, firing), _format_time(each.last_fired_at),
             _format_time(each.updated_at), _format_time(each.created_at), str(len(each.rule.channels))]
            for each in found
        ],
    )  # fmt: skip
    if incidents:
        click.echo()
        print_table(
            ["incident", "rule", "queue", "state", "since", "value when fired", "current value"],
            [
                [
                    each.id,
                    escape_control(each.rule["name"]),
                    escape_control(each.queue) or ABSENT,
                    each.state,
                    format_second(each.fired_at),
                    _format_value(each, each.value),
                    ABSENT if each.current_at is None else _format_value(each, each.current_value),
                ]
                for each in incidents
            ],
        )


@alerts.command("apply")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Show what would change, without changing anything.")
@click.option(
    "--prune",
    is_flag=True,
    help="Also remove rules and channels of the file's environments that are not in the file.",
)
@json_option
@pass_invocation
def apply_file(invocation: Invocation, file: Path, dry_run: bool, prune: bool, as_json: bool) -> None:
    """Create and update rules and channels from a TOML file."""
    plan = read_plan(file)
    with open_transaction(invocation.settings) as conn:
        changes = diff_plan(conn, plan, prune=prune, policy=ChannelPolicy.from_settings(invocation.settings.alerts))
        if not dry_run:
            apply_changes(conn, changes)
            done = Counter(f"{change.what}s_{change.verb}" for change in changes if change.verb != "keep")
            if done:
                audit_log.record_cli_operation(conn, "alerts.apply", GLOBAL_SCOPE, **done)
    if not as_json:
        click.echo("\n".join(change.summary for change in changes if change.verb != "keep") or "nothing to do")
    for change in changes:
        if change.secret is not None and not dry_run:
            click.echo(f"signing secret for webhook {change.name!r} (shown only once): {change.secret}", err=True)
    if as_json:
        documents = [{"verb": each.verb, "what": each.what, **asdict(each.env), "name": each.name} for each in changes]
        print_json({"changes": documents, "applied": not dry_run})


@alerts.command()
@env_arguments
@click.option(
    "--for",
    "span",
    type=duration_ms_type("1m", "365d"),
    required=True,
    metavar="DURATION",
    help="Length of the silence, 1m to 365d.",
)
@click.option("--rule", "rule_name", metavar="NAME", help="Silence only this rule (default: all rules).")
@click.option("--queue", metavar="QUEUE", help="Silence only this queue (default: all queues).")
@click.option("--reason", default="", metavar="TEXT", help="Reason, shown to other operators.")
@json_option
@pass_invocation
def silence(
    invocation: Invocation,
    env: EnvRef,
    span: int,
    rule_name: str | None,
    queue: str | None,
    reason: str,
    as_json: bool,
) -> None:
    """Silence an environment: send no notifications for new incidents."""
    now = datetime.now(UTC)
    with open_transaction(invocation.settings) as conn:
        rule_id = None if rule_name is None else _find_rule(conn, env, rule_name).id
        where = (env.org, env.project, env.env)
        ends_at = now + timedelta(milliseconds=span)
        added = Silence(
            records.generate_id("silence"), *where, rule_id, queue, reason, audit_log.COMMAND_LINE, now, ends_at
        )
        records.add_silence(conn, added)
        audit_log.record_cli_operation(conn, "alerts.silence", KeyScope(*where), id=added.id, reason=reason)
    text = f"silenced until {format_second(added.ends_at)} ({added.id})"
    print_json_or_text(as_json, {"id": added.id, "ends_at": added.ends_at.isoformat()}, text)


@alerts.command()
@click.argument("incident_id", metavar="INCIDENT")
@json_option
@pass_invocation
def ack(invocation: Invocation, incident_id: str, as_json: bool) -> None:
    """Acknowledge an incident."""
    with open_transaction(invocation.settings) as conn:
        if not records.acknowledge(conn, incident_id, audit_log.COMMAND_LINE):
            raise HeadraceError(
                f"No unacknowledged open incident {incident_id!r}. `headrace alerts list` shows the open incidents."
            )
        found = records.find_incident(conn, incident_id)
        assert found is not None, "the incident was just acknowledged"
        scope = KeyScope(found.org, found.project, found.env) if found.org else GLOBAL_SCOPE
        audit_log.record_cli_operation(conn, "alerts.acknowledge", scope, id=incident_id)
    print_json_or_text(as_json, {"id": incident_id}, f"acknowledged {incident_id}")


@alerts.command("test")
@env_arguments
@click.argument("channel")
@json_option
@pass_invocation
def send_test(invocation: Invocation, env: EnvRef, channel: str, as_json: bool) -> None:
    """Send a test message to a channel."""
    with open_transaction(invocation.settings) as conn:
        known = {each.name: each for each in records.list_channels(conn, asdict(env))}
    if channel not in known:
        raise HeadraceError(
            f"No channel {channel!r} in {_format_env(env)}. Channels there: {', '.join(known) or 'none'}."
        )
    message = AlertMessage(str(uuid4()), "test", Rule("", env.org, env.project, env.env, "", ""), [])
    send(known[channel].type, known[channel].config, message, build_send_options(invocation.settings), env.org)
    print_json_or_text(as_json, {"id": message.id}, f"delivered to {known[channel].target} ({message.id})")


def build_send_options(settings: Settings) -> SendOptions:
    given = settings.alerts
    return SendOptions(
        given.send_timeout,
        AddressPolicy(given.allowed_hosts, given.allow_private),
        settings.api.public_url,
        given.smtp_url,
        given.email_from,
        ChannelPolicy.from_settings(given),
        given.smtp_starttls,
    )


def _find_rule(conn: Connection, env: EnvRef, name: str) -> Rule:
    rules = {rule.name: rule for rule in records.list_rules(conn, asdict(env))}
    if name not in rules:
        raise HeadraceError(f"No rule {name!r} in {_format_env(env)}. Rules there: {', '.join(rules) or 'none'}.")
    return rules[name]


def _format_state(rule: Rule, firing: Counter[str]) -> str:
    if not rule.enabled:
        return "disabled"
    return f"firing ({firing[rule.id]})" if firing[rule.id] else "ok"


def _format_time(at: datetime | None) -> str:
    return ABSENT if at is None else format_second(at)


def _format_value(incident: Incident, value: float | None) -> str:
    """Format a value of an incident; those of Headrace's own health have none."""
    return ABSENT if incident.condition is None else rule_from_document(incident.rule).format_measured(value)


def _format_env(env: EnvRef) -> str:
    return " / ".join(map(escape_control, (env.org, env.project, env.env)))
