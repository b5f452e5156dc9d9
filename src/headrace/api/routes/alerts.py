"""Routes for alert rules, channels, silences and incidents."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Protocol, TypeVar

from fastapi import APIRouter, Query, Request
from pydantic import AwareDatetime

from headrace.alerts import operator_actions as manual
from headrace.alerts import records
from headrace.alerts.backtest import backtest_rule as backtest
from headrace.alerts.channels import make_channel
from headrace.alerts.records import Incident, Silence
from headrace.alerts.rules import RULE_FIELDS, SLO_FIELDS, InvalidRule, Rule, make_rule
from headrace.api.access import GLOBAL_SCOPE, AccessLevel, Caller, KeyScope
from headrace.api.deps import (
    AdminTenant,
    Auditor,
    CurrentCaller,
    CursorText,
    EnvironmentFilterDep,
    OperateTenant,
    ReadTenant,
    ServicesDep,
    make_page_limit,
)
from headrace.api.environment_filter import EnvironmentFilter
from headrace.api.history_queries import run_history_query
from headrace.api.pagination import CursorCodec
from headrace.api.problems import RETRY_AFTER_S, Problem, make_problem_responses
from headrace.api.raw_path import RawPathRoute
from headrace.api.schemas.alerts import (
    BacktestDocument,
    ChannelChange,
    ChannelDocument,
    ChannelList,
    IncidentDetail,
    IncidentList,
    MadeChannel,
    NewChannel,
    NewRule,
    NewSilence,
    RuleChange,
    RuleDocument,
    RuleList,
    RuleToTest,
    SilenceDocument,
    SilenceList,
    Tested,
    present_backtest,
    present_channel,
    present_created_channel,
    present_incident,
    present_incident_detail,
    present_rule,
    present_silence,
)
from headrace.api.schemas.common import Name
from headrace.api.services import Services
from headrace.errors import HeadraceError, QuotaExceeded
from headrace.model.names import EnvRef
from headrace.model.tenant_slots import TenantSlots
from headrace.postgres.connect import Connection, DuplicateKey, transaction
from headrace.queue.quotas import count_refusal
from headrace.warehouse.alert_history import BacktestTooLarge

router = APIRouter(prefix="/api/v1/alerts", tags=["alerts"], route_class=RawPathRoute)

MAX_SILENCE_S = 366 * 86_400
TEST_WAIT_S = 10.0
TEST_POLL_S = 0.2
CURSOR: CursorCodec[tuple[datetime, str]] = CursorCodec(tuple[AwareDatetime, Name])
TOO_MANY_TESTS = "The maximum number of channel tests is running. Nothing was sent; retry shortly."
TOO_MANY_BACKTESTS = "The maximum number of back-tests is running. Retry shortly."
CONFLICT = make_problem_responses(409)


class HasEnvironment(Protocol):
    @property
    def environment(self) -> EnvRef: ...


P = TypeVar("P", bound=HasEnvironment)


@contextmanager
def _transaction(services: Services, adds_to: EnvRef | None = None) -> Generator[Connection]:
    """Open a transaction and turn errors into problems: invalid rules into a 400, a concurrently created name into a
    409. Refusals by a quota of the environment `adds_to` are counted."""
    try:
        with transaction(services.postgres) as conn:
            yield conn
    except InvalidRule as error:
        raise Problem(400, str(error)) from error
    except DuplicateKey as error:
        raise Problem(409, "A concurrent request created one with this name. Nothing was changed.") from error
    except QuotaExceeded as error:
        if adds_to is not None:
            with suppress(HeadraceError):
                count_refusal(services.valkey, services.shards, adds_to, error.quota)
        raise


def _require_visible(
    found: P | None, what: str, row_id: str, caller: Caller, level: AccessLevel = AccessLevel.READ
) -> P:
    """Return the row if it exists and is in the key's scope; otherwise raise the same 404 for both cases."""
    if found is None or not caller.scope.covers(found.environment):
        raise Problem(404, f"{what.capitalize()} {row_id[:128]!r} does not exist or is outside this key's scope.")
    caller.require(level)
    return found


def _find_row(
    services: Services,
    find: Callable[[Connection, str], P | None],
    what: str,
    row_id: str,
    caller: Caller,
    level: AccessLevel = AccessLevel.READ,
) -> P:
    """Read a row in a transaction of its own. Raises as `_require_visible` does."""
    with _transaction(services) as conn:
        return _require_visible(find(conn, row_id), what, row_id, caller, level)


def _list_rows(
    services: Services, read: Callable[[Connection, Mapping[str, str | None]], list[P]], where: EnvironmentFilter
) -> list[P]:
    if where.nothing:
        return []
    with _transaction(services) as conn:
        return read(conn, where.parts)


# --- Rules -----------------------------------------------------------------------------------------


@router.get("/rules")
def list_rules(where: EnvironmentFilterDep, services: ServicesDep) -> RuleList:
    """List the rules in the key's scope."""
    return RuleList(rules=[present_rule(each) for each in _list_rows(services, records.list_rule_records, where)])


@router.post("/rules", status_code=201, responses=make_problem_responses(409, 413))
def add_rule(tenant: OperateTenant, services: ServicesDep, auditor: Auditor, given: NewRule) -> RuleDocument:
    """Create a rule. Requires level operate."""
    fields = given.model_dump(exclude_none=True)
    with (
        auditor.record("alerts.rule.add", tenant, given.queue, rule=fields) as entry,
        _transaction(services, tenant) as conn,
    ):
        rule = make_rule(records.generate_id("rule"), tenant, fields)
        records.put_rule(conn, rule)
        entry.note(id=rule.id)
        return _load_rule(conn, rule.id)


@router.get("/rules/{id}")
def show_rule(id: Name, caller: CurrentCaller, services: ServicesDep) -> RuleDocument:
    """Get one rule."""
    return present_rule(_find_row(services, records.find_rule_record, "rule", id, caller))


@router.patch("/rules/{id}", responses=make_problem_responses(409, 413))
def change_rule(
    id: Name, caller: CurrentCaller, services: ServicesDep, auditor: Auditor, given: RuleChange
) -> RuleDocument:
    """Change a rule. Open incidents stay open and are evaluated against the changed rule. Requires level operate."""
    found = _find_row(services, records.find_rule, "rule", id, caller, AccessLevel.OPERATE)
    fields = given.model_dump(exclude_unset=True)
    with (
        auditor.record("alerts.rule.change", found.environment, found.queue, id=id, change=fields),
        _transaction(services) as conn,
    ):
        before = _require_visible(records.lock_rule(conn, id), "rule", id, caller, AccessLevel.OPERATE)
        records.put_rule(conn, _apply_change(_drop_removed_channels(conn, before), fields))
        return _load_rule(conn, id)


@router.delete("/rules/{id}", status_code=204)
def remove_rule(id: Name, caller: CurrentCaller, services: ServicesDep, auditor: Auditor) -> None:
    """Delete a rule. Its open incidents are resolved at the next evaluation. Requires level operate."""
    found = _find_row(services, records.find_rule, "rule", id, caller, AccessLevel.OPERATE)
    with auditor.record("alerts.rule.remove", found.environment, found.queue, id=id), _transaction(services) as conn:
        records.remove_rule(conn, id)


@router.post("/rules/backtest", responses=make_problem_responses(413))
async def backtest_rule(
    request: Request, tenant: ReadTenant, caller: CurrentCaller, services: ServicesDep, given: RuleToTest
) -> BacktestDocument:
    """Return how often a rule would have fired in the last 24 hours. Nothing is created or changed."""
    fields = {"name": "backtest", **given.model_dump(exclude_none=True), "channels": []}
    settings = services.alerts
    try:
        rule = make_rule("backtest", tenant, fields)
        with _take_slot(services.backtest_slots, tenant, TOO_MANY_BACKTESTS):
            result = await run_history_query(
                request,
                services,
                caller,
                lambda queries: backtest(queries, rule, services.now_ms(), settings.every, settings.max_lag),
            )
    except (InvalidRule, BacktestTooLarge) as error:
        raise Problem(400, str(error)) from error
    return present_backtest(rule, result)


def _load_rule(conn: Connection, rule_id: str) -> RuleDocument:
    found = records.find_rule_record(conn, rule_id)
    assert found is not None, "the rule was just written"
    return present_rule(found)


def _drop_removed_channels(conn: Connection, rule: Rule) -> Rule:
    """Remove deleted channels from the rule, so that it can still be changed."""
    existing = {channel.id for channel in records.list_channels(conn, asdict(rule.environment))}
    return replace(rule, channels=tuple(channel for channel in rule.channels if channel in existing))


def _apply_change(before: Rule, change: dict[str, Any]) -> Rule:
    """Apply a change. Null means unchanged, except for `queue`, where it means every queue."""
    kept = {key: value for key, value in asdict(before).items() if key in RULE_FIELDS}
    fields = {**kept, **{key: value for key, value in change.items() if value is not None or key == "queue"}}
    if fields["metric"] == "NO_DATA" and before.metric != "NO_DATA":
        fields = {key: value for key, value in fields.items() if key not in ("threshold", "operator") or key in change}
    if fields["metric"] != "SLO" and before.metric == "SLO":
        fields |= {key: change.get(key) for key in SLO_FIELDS}
    return make_rule(before.id, before.environment, fields, before.created_ms)


# --- Channels --------------------------------------------------------------------------------------


@router.get("/channels")
def list_channels(where: EnvironmentFilterDep, services: ServicesDep) -> ChannelList:
    """List the channels in the key's scope, without secrets."""
    return ChannelList(channels=[present_channel(each) for each in _list_rows(services, records.list_channels, where)])


@router.post("/channels", status_code=201, responses=make_problem_responses(409, 413))
def add_channel(
    tenant: AdminTenant, caller: CurrentCaller, services: ServicesDep, auditor: Auditor, given: NewChannel
) -> MadeChannel:
    """Create a channel. Requires level admin; `health` requires a key with global scope."""
    _refuse_health(bool(given.health), caller)
    with (
        auditor.record("alerts.channel.add", tenant, name=given.name, type=given.type) as entry,
        _transaction(services, tenant) as conn,
    ):
        fields = given.model_dump(exclude_none=True)
        channel, secret = make_channel(records.generate_id("channel"), tenant, fields, policy=services.channel_policy)
        records.put_channel(conn, channel)
        entry.note(id=channel.id)
    return present_created_channel(channel, secret)


@router.get("/channels/{id}")
def show_channel(id: Name, caller: CurrentCaller, services: ServicesDep) -> ChannelDocument:
    """Get one channel, without secrets."""
    return present_channel(_find_row(services, records.find_channel, "channel", id, caller))


@router.patch("/channels/{id}", responses=make_problem_responses(409, 413))
def change_channel(
    id: Name, caller: CurrentCaller, services: ServicesDep, auditor: Auditor, given: ChannelChange
) -> MadeChannel:
    """Change a channel and retry its undelivered messages at once. Requires level admin; a channel with `health`
    requires a key with global scope."""
    found = _find_row(services, records.find_channel, "channel", id, caller, AccessLevel.ADMIN)
    _refuse_health(found.health or bool(given.health), caller)
    fields = given.model_dump(exclude_none=True)
    with (
        auditor.record("alerts.channel.change", found.environment, id=id, fields=sorted(fields)),
        _transaction(services) as conn,
    ):
        before = _require_visible(records.lock_channel(conn, id), "channel", id, caller, AccessLevel.ADMIN)
        _refuse_health(before.health, caller)
        channel, secret = make_channel(id, before.environment, fields, before, services.channel_policy)
        records.put_channel(conn, channel)
    return present_created_channel(channel, secret)


@router.delete("/channels/{id}", status_code=204)
def remove_channel(id: Name, caller: CurrentCaller, services: ServicesDep, auditor: Auditor) -> None:
    """Delete a channel and its undelivered messages. Requires level admin; a channel with `health` requires a key with
    global scope."""
    found = _find_row(services, records.find_channel, "channel", id, caller, AccessLevel.ADMIN)
    _refuse_health(found.health, caller)
    with (
        auditor.record("alerts.channel.remove", found.environment, id=id, name=found.name),
        _transaction(services) as conn,
    ):
        records.remove_channel(conn, id)


@router.post("/channels/{id}/test")
def try_channel(id: Name, caller: CurrentCaller, services: ServicesDep, auditor: Auditor) -> Tested:
    """Send a test message through the outbox and wait up to 10 s for the result. Requires level operate."""
    found = _find_row(services, records.find_channel, "channel", id, caller, AccessLevel.OPERATE)
    with (
        _take_slot(services.channel_test_slots, found.environment, TOO_MANY_TESTS),
        auditor.record("alerts.channel.test", found.environment, id=id) as entry,
    ):
        with _transaction(services) as conn:
            message_id = manual.add_test_message(conn, found)
        deadline = time.monotonic() + TEST_WAIT_S
        while True:
            with _transaction(services) as conn:
                delivered, error = manual.read_message_result(conn, message_id)
            if delivered or error is not None or time.monotonic() > deadline:
                break
            time.sleep(TEST_POLL_S)
        entry.note(delivered=delivered)
    if not delivered and error is None:
        error = "Not sent yet. Check that `headrace alerts run` is running and the channel is enabled."
    return Tested(id=message_id, delivered=delivered, error=error)


def _refuse_health(is_health: bool, caller: Caller) -> None:
    """Raise a 403 for channels with `health` unless the key has global scope: their messages name tenants."""
    if is_health and not caller.scope.is_global:
        raise Problem(
            403,
            "Channels with health receive incidents of all tenants, so changing them requires a key with global scope. "
            f"Key {caller.name!r} covers {caller.scope}. Nothing was changed.",
        )


@contextmanager
def _take_slot(slots: TenantSlots, env: EnvRef, refusal: str) -> Generator[None]:
    """Take a slot of the environment, or raise a 429 with the text `refusal`."""
    if not slots.acquire(env):
        raise Problem(429, refusal, {"Retry-After": str(RETRY_AFTER_S)})
    try:
        yield
    finally:
        slots.release(env)


# --- Silences --------------------------------------------------------------------------------------


@router.get("/silences")
def list_silences(where: EnvironmentFilterDep, services: ServicesDep) -> SilenceList:
    """List the silences in the key's scope that have not ended."""
    return SilenceList(silences=[present_silence(each) for each in _list_rows(services, records.list_silences, where)])


@router.post("/silences", status_code=201, responses=make_problem_responses(413))
def add_silence(
    tenant: OperateTenant, caller: CurrentCaller, services: ServicesDep, auditor: Auditor, given: NewSilence
) -> SilenceDocument:
    """Create a silence. Incidents that start while it lasts send no messages; those still open when it ends are
    announced then. Requires level operate."""
    now = datetime.now(UTC)
    starts_at = given.starts_at or now
    if not max(now, starts_at) < given.ends_at or (given.ends_at - now).total_seconds() > MAX_SILENCE_S:
        raise Problem(400, "ends_at must be after starts_at, in the future, and within a year. Nothing was changed.")
    if (now - starts_at).total_seconds() > MAX_SILENCE_S:
        raise Problem(400, "starts_at must not be more than a year ago. Nothing was changed.")
    reason = given.reason.replace("\0", "")  # PostgreSQL cannot store NUL, nor can the audit log
    fields = {**given.model_dump(mode="json", exclude_none=True), "reason": reason}
    with (
        auditor.record("alerts.silence.add", tenant, given.queue, silence=fields) as entry,
        _transaction(services) as conn,
    ):
        if given.rule_id is not None:
            rule = _require_visible(records.find_rule(conn, given.rule_id), "rule", given.rule_id, caller)
            if rule.environment != tenant:
                raise Problem(400, "rule_id: the rule belongs to another environment. Nothing was changed.")
        where = (tenant.org, tenant.project, tenant.env)
        what = (given.rule_id, given.queue, reason)
        silence = Silence(records.generate_id("silence"), *where, *what, caller.name, starts_at, given.ends_at)
        records.add_silence(conn, silence)
        entry.note(id=silence.id)
    return present_silence(silence)


@router.delete("/silences/{id}", status_code=204)
def end_silence(id: Name, caller: CurrentCaller, services: ServicesDep, auditor: Auditor) -> None:
    """End a silence now. Requires level operate."""
    found = _find_row(services, records.find_silence, "silence", id, caller, AccessLevel.OPERATE)
    with auditor.record("alerts.silence.end", found.environment, found.queue, id=id), _transaction(services) as conn:
        records.end_silence(conn, id)


# --- Incidents -------------------------------------------------------------------------------------


@router.get("/incidents")
def list_incidents(
    where: EnvironmentFilterDep,
    services: ServicesDep,
    state: Annotated[
        Literal["open", "resolved"] | None, Query(description="Only incidents in this state; default: all.")
    ] = None,
    limit: Annotated[int, make_page_limit("Incidents")] = 100,
    cursor: CursorText = None,
) -> IncidentList:
    """List incidents in the key's scope, newest first. Incidents about Headrace's own health are visible only to keys
    with global scope."""
    before = CURSOR.decode("incidents", cursor)
    if where.nothing:
        return IncidentList(incidents=[], next=None)
    is_open = None if state is None else state == "open"
    with _transaction(services) as conn:
        found = records.list_incidents(conn, where.parts, is_open=is_open, before=before, limit=limit + 1)
    page = found[:limit]
    more = CURSOR.encode("incidents", (page[-1].fired_at, page[-1].id)) if len(found) > limit else None
    return IncidentList(incidents=[present_incident(each) for each in page], next=more)


@router.get("/incidents/{id}")
def show_incident(id: Name, caller: CurrentCaller, services: ServicesDep) -> IncidentDetail:
    """Get one incident with its state transitions and deliveries."""
    with _transaction(services) as conn:
        return _load_detail(conn, id, caller)


@router.post("/incidents/{id}/acknowledge", responses=CONFLICT)
def acknowledge_incident(id: Name, caller: CurrentCaller, services: ServicesDep, auditor: Auditor) -> IncidentDetail:
    """Acknowledge an incident. Requires level operate."""
    found = _find_row(services, records.find_incident, "incident", id, caller, AccessLevel.OPERATE)
    with (
        auditor.record("alerts.acknowledge", _get_audit_environment(found), found.queue, id=id),
        _transaction(services) as conn,
    ):
        if not records.acknowledge(conn, id, caller.name):
            raise Problem(409, "The incident is already acknowledged or resolved. Nothing was changed.")
        return _load_detail(conn, id, caller)


@router.post("/incidents/{id}/resolve", responses=CONFLICT)
def resolve_incident(id: Name, caller: CurrentCaller, services: ServicesDep, auditor: Auditor) -> IncidentDetail:
    """Resolve an incident regardless of current values. If the condition still holds, the rule fires again after its
    cooldown. Requires level operate."""
    found = _find_row(services, records.find_incident, "incident", id, caller, AccessLevel.OPERATE)
    with (
        auditor.record("alerts.resolve", _get_audit_environment(found), found.queue, id=id),
        _transaction(services) as conn,
    ):
        if not manual.resolve_incident(conn, found, caller.name, services.now_ms()):
            raise Problem(409, "The incident is already resolved. Nothing was changed.")
        return _load_detail(conn, id, caller)


def _load_detail(conn: Connection, id: str, caller: Caller) -> IncidentDetail:
    incident = _require_visible(records.find_incident(conn, id), "incident", id, caller)
    return present_incident_detail(incident, records.list_transitions(conn, id), records.list_deliveries(conn, id))


def _get_audit_environment(incident: Incident) -> EnvRef | KeyScope:
    """Return the environment for the audit log; the global scope for incidents about Headrace's own health."""
    return incident.environment if incident.org else GLOBAL_SCOPE
