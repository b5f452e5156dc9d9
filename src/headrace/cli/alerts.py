"""`headrace alerts`: runs the evaluator, and manages rules, silences and incidents."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import click

from headrace.alerts import records
from headrace.alerts.channel_policy import ChannelPolicy
from headrace.alerts.evaluator import Evaluator, EvaluatorOptions
from headrace.alerts.lease import Lease
from headrace.alerts.messages import Message
from headrace.alerts.outbox import Outbox, OutboxOptions
from headrace.alerts.plan import apply, diff, read_plan
from headrace.alerts.records import ANYWHERE, Silence
from headrace.alerts.rules import Rule
from headrace.alerts.senders import SendOptions, send
from headrace.alerts.service import Service, ServiceOptions
from headrace.api import audit
from headrace.api.callers import EVERYTHING, Scope
from headrace.cli import Invocation, pass_invocation
from headrace.cli.arguments import env_arguments, milliseconds
from headrace.cli.endpoints import find_endpoints
from headrace.cli.humane import ABSENT, plain, time_text
from headrace.cli.logs import configure_logs
from headrace.cli.output import json_option, print_json, print_table
from headrace.cli.own_pages import loop_pages, metrics_port_option
from headrace.cli.signals import stop_event
from headrace.errors import HeadraceError
from headrace.model.names import EnvRef
from headrace.postgres.connect import Connection, connection, open_pool
from headrace.settings import Settings
from headrace.warehouse.connect import connect
from headrace.webhook.guard import AddressPolicy

CONNECTIONS = 16
MOST_INCIDENTS = 500


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
    endpoints = find_endpoints(settings, "postgres", "clickhouse")
    given = settings.alerts
    with open_pool(endpoints.postgres, max_size=CONNECTIONS) as pool:
        lease = Lease(pool, given.lease)
        options = EvaluatorOptions(given.max_lag, given.query_timeout)
        timeout_s = int(given.query_timeout) + 2
        database = settings.warehouse.database
        evaluator = Evaluator(pool, lease, lambda: connect(endpoints.clickhouse, database, timeout_s), options)
        retries = OutboxOptions(given.retry_interval, given.max_retry_delay, given.give_up)
        outbox = Outbox(pool, send_options(settings), retries)
        service = Service(pool, lease, evaluator, outbox, ServiceOptions(given.every, given.lease, given.keep))
        with loop_pages(settings, metrics_port, given.metrics_port, service.figures):
            service.run_forever(stop_event(signal.SIGTERM, signal.SIGINT))


@alerts.command("list")
@json_option
@pass_invocation
def list_all(invocation: Invocation, as_json: bool) -> None:
    """List all rules and the open incidents."""
    with _transaction(invocation.settings) as conn:
        rules = records.list_rules(conn)
        incidents = records.list_incidents(conn, ANYWHERE, is_open=True, limit=MOST_INCIDENTS)
    if as_json:
        print_json(
            {
                "rules": [{**asdict(rule), "channels": list(rule.channels)} for rule in rules],
                "incidents": [
                    {
                        **{"id": each.id, "rule": each.rule["name"], "org": each.org, "project": each.project},
                        **{"env": each.env, "queue": each.queue, "state": each.state, "value": each.value},
                        "fired_at": each.fired_at.astimezone(UTC).isoformat(),
                    }
                    for each in incidents
                ],
            }
        )
        return
    firing = Counter(each.rule_id for each in incidents)
    print_table(
        ["rule", "environment", "condition", "severity", "state", "channels"],
        [
            [plain(rule.name), _where(rule.environment), rule.condition(), rule.severity, _state(rule, firing),
             str(len(rule.channels))]
            for rule in rules
        ],
    )  # fmt: skip
    if incidents:
        click.echo()
        print_table(
            ["incident", "rule", "queue", "state", "since"],
            [
                [each.id, plain(each.rule["name"]), plain(each.queue) or ABSENT, each.state, _time(each.fired_at)]
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
    with _transaction(invocation.settings) as conn:
        changes = diff(conn, plan, prune=prune, policy=ChannelPolicy.of(invocation.settings.alerts))
        if not dry_run:
            apply(conn, changes)
            done = Counter(f"{change.what}s_{change.verb}" for change in changes if change.verb != "keep")
            if done:
                audit.record_command(conn, "alerts.apply", EVERYTHING, **done)
    if not as_json:
        click.echo("\n".join(change.line for change in changes if change.verb != "keep") or "nothing to do")
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
    type=milliseconds("1m", "365d"),
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
    with _transaction(invocation.settings) as conn:
        rule_id = None if rule_name is None else _rule_named(conn, env, rule_name).id
        where = (env.org, env.project, env.env)
        ends_at = now + timedelta(milliseconds=span)
        added = Silence(records.new_id("silence"), *where, rule_id, queue, reason, audit.COMMAND_LINE, now, ends_at)
        records.add_silence(conn, added)
        audit.record_command(conn, "alerts.silence", Scope(*where), id=added.id, reason=reason)
    if as_json:
        print_json({"id": added.id, "ends_at": added.ends_at.isoformat()})
    else:
        click.echo(f"silenced until {_time(added.ends_at)} ({added.id})")


@alerts.command()
@click.argument("incident_id", metavar="INCIDENT")
@json_option
@pass_invocation
def ack(invocation: Invocation, incident_id: str, as_json: bool) -> None:
    """Acknowledge an incident."""
    with _transaction(invocation.settings) as conn:
        if not records.acknowledge(conn, incident_id, audit.COMMAND_LINE):
            raise HeadraceError(
                f"No unacknowledged open incident {incident_id!r}. `headrace alerts list` shows the open incidents."
            )
        found = records.find_incident(conn, incident_id)
        assert found is not None, "the incident was just acknowledged"
        scope = Scope(found.org, found.project, found.env) if found.org else EVERYTHING
        audit.record_command(conn, "alerts.acknowledge", scope, id=incident_id)
    if as_json:
        print_json({"id": incident_id})
    else:
        click.echo(f"acknowledged {incident_id}")


@alerts.command("test")
@env_arguments
@click.argument("channel")
@json_option
@pass_invocation
def send_test(invocation: Invocation, env: EnvRef, channel: str, as_json: bool) -> None:
    """Send a test message to a channel."""
    with _transaction(invocation.settings) as conn:
        known = {each.name: each for each in records.list_channels(conn, asdict(env))}
    if channel not in known:
        raise HeadraceError(f"No channel {channel!r} in {_where(env)}. Channels there: {', '.join(known) or 'none'}.")
    message = test_message(env)
    send(known[channel].type, known[channel].config, message, send_options(invocation.settings), env.org)
    if as_json:
        print_json({"id": message.id})
    else:
        click.echo(f"delivered to {known[channel].target} ({message.id})")


def test_message(env: EnvRef) -> Message:
    return Message(str(uuid4()), "test", Rule("", env.org, env.project, env.env, "", ""), [])


def send_options(settings: Settings) -> SendOptions:
    given = settings.alerts
    return SendOptions(
        given.send_timeout,
        AddressPolicy(given.allowed_hosts, given.allow_private),
        settings.api.public_url,
        given.smtp_url,
        given.email_from,
        ChannelPolicy.of(given),
        given.smtp_starttls,
    )


@contextmanager
def _transaction(settings: Settings) -> Generator[Connection]:
    with open_pool(find_endpoints(settings, "postgres").postgres, max_size=1) as pool, connection(pool) as conn:
        yield conn


def _rule_named(conn: Connection, env: EnvRef, name: str) -> Rule:
    rules = {rule.name: rule for rule in records.list_rules(conn, asdict(env))}
    if name not in rules:
        raise HeadraceError(f"No rule {name!r} in {_where(env)}. Rules there: {', '.join(rules) or 'none'}.")
    return rules[name]


def _state(rule: Rule, firing: Counter[str]) -> str:
    if not rule.enabled:
        return "disabled"
    return f"firing ({firing[rule.id]})" if firing[rule.id] else "ok"


def _where(env: EnvRef) -> str:
    return " / ".join(map(plain, (env.org, env.project, env.env)))


def _time(at: datetime) -> str:
    return time_text(int(at.timestamp()) * 1000)[:19]
