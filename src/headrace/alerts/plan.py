"""Rules and channels from a file: compute the changes first, then apply them.

A rule or channel is identified by its name within its environment, so applying the same file again changes nothing.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headrace.alerts.channel_policy import DEFAULT_POLICY, ChannelPolicy
from headrace.alerts.channels import make_channel
from headrace.alerts.records import (
    Channel,
    generate_id,
    list_channels,
    list_rules,
    put_channel,
    put_rule,
    remove_channel,
    remove_rule,
)
from headrace.alerts.rules import (
    MAX_COOLDOWN_S,
    MAX_FOR_S,
    MAX_WINDOW_S,
    MAX_WITHIN_MS,
    InvalidRule,
    Rule,
    make_rule,
)
from headrace.kinds import duration
from headrace.model.names import EnvRef, find_name_problem
from headrace.postgres.connect import Connection

PlannedName = tuple[EnvRef, str]

SPANS = {
    "window": ("window_s", 1, MAX_WINDOW_S),
    "cooldown": ("cooldown_s", 1, MAX_COOLDOWN_S),
    "for": ("for_s", 1, MAX_FOR_S),
    "within": ("within_ms", 1000, MAX_WITHIN_MS // 1000),
}
"""Durations in a file: field of the rule, units of the field per second, and the longest duration in seconds."""
TABLES = ("rule", "channel")


@dataclass(frozen=True)
class PlanChange:
    verb: str  # add, change, remove or keep
    what: str  # rule or channel
    env: EnvRef
    name: str
    row: Rule | Channel
    fields: tuple[str, ...] = ()  # changed fields; secrets without their values
    secret: str | None = None  # generated secret, to be shown once

    @property
    def summary(self) -> str:
        sign = {"add": "+", "change": "~", "remove": "-", "keep": " "}[self.verb]
        where = f"{self.env.org} / {self.env.project} / {self.env.env}"
        return f"{sign} {self.what} {self.name!r} of {where}" + (f": {', '.join(self.fields)}" if self.fields else "")


def read_plan(file: Path) -> dict[str, list[dict[str, Any]]]:
    try:
        document = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise InvalidRule(f"Could not read file {file}: {error.strerror}. Nothing was changed.") from error
    except ValueError as error:
        raise InvalidRule(f"File {file} is not valid TOML: {error}. Nothing was changed.") from error
    if unknown := document.keys() - set(TABLES):
        raise InvalidRule(
            f"File {file}: unknown table {sorted(unknown)[0]!r}; allowed are [[rule]] and [[channel]]. "
            "Nothing was changed."
        )
    return {table: list(document.get(table, [])) for table in TABLES}


def diff_plan(
    conn: Connection, plan: Mapping[str, list[dict[str, Any]]], *, prune: bool, policy: ChannelPolicy = DEFAULT_POLICY
) -> list[PlanChange]:
    """Return the changes that make the stored rules and channels match the file.

    With `prune`, rules and channels of the file's environments that are not in the file are removed. Raises
    InvalidRule.
    """
    channels = {(each.environment, each.name): each for each in list_channels(conn)}
    rules = {(each.environment, each.name): each for each in list_rules(conn)}
    changes = [_diff_channel(given, channels, policy) for given in plan["channel"]]
    ids = {name: each.id for name, each in channels.items()}
    ids |= {(each.env, each.name): each.row.id for each in changes}
    changes += [_diff_rule(given, rules, ids) for given in plan["rule"]]
    _refuse_duplicates(changes)
    if prune:
        named = {(each.what, each.env, each.name) for each in changes}
        envs = {each.env for each in changes}
        # Rules first, because they reference channels.
        for what, rows in (("rule", rules), ("channel", channels)):
            changes += [
                PlanChange("remove", what, env, name, row)
                for (env, name), row in rows.items()
                if env in envs and (what, env, name) not in named
            ]
    return changes


def apply_changes(conn: Connection, changes: list[PlanChange]) -> None:
    for change in changes:
        if change.verb == "keep":
            continue
        if change.verb == "remove":
            (remove_rule if isinstance(change.row, Rule) else remove_channel)(conn, change.row.id)
        elif isinstance(change.row, Rule):
            put_rule(conn, change.row)
        else:
            put_channel(conn, change.row)


def _diff_channel(given: dict[str, Any], known: Mapping[PlannedName, Channel], policy: ChannelPolicy) -> PlanChange:
    env, rest = _split_environment("channel", given)
    before = known.get((env, str(rest.get("name"))))
    channel, secret = make_channel(before.id if before else generate_id("channel"), env, rest, before, policy)
    if before is None:
        return PlanChange("add", "channel", env, channel.name, channel, secret=secret)
    compared = ("type", "target", "config", "health", "enabled")
    changed = tuple(field for field in compared if getattr(before, field) != getattr(channel, field))
    return PlanChange("change" if changed else "keep", "channel", env, channel.name, channel, changed, secret)


def _diff_rule(given: dict[str, Any], known: Mapping[PlannedName, Rule], ids: Mapping[PlannedName, str]) -> PlanChange:
    env, rest = _split_environment("rule", given)
    before = known.get((env, str(rest.get("name"))))
    named = rest.get("channels", [])
    if not isinstance(named, list):
        raise InvalidRule(f"Rule {rest.get('name')!r}: channels must be a list of names. Nothing was changed.")
    if missing := [name for name in named if (env, name) not in ids]:
        raise InvalidRule(
            f"Rule {rest.get('name')!r}: channel {missing[0]!r} is neither in the file nor in the rule's environment. "
            "Nothing was changed."
        )
    fields = {**_parse_spans(rest), "channels": [ids[env, name] for name in named]}
    rule = make_rule(before.id if before else generate_id("rule"), env, fields)
    if before is None:
        return PlanChange("add", "rule", env, rule.name, rule)
    rule = replace(rule, created_ms=before.created_ms)
    old, new = asdict(before), asdict(rule)
    changed = tuple(f"{field} {old[field]!r} → {new[field]!r}" for field in old if old[field] != new[field])
    return PlanChange("change" if changed else "keep", "rule", env, rule.name, rule, changed)


def _split_environment(what: str, given: dict[str, Any]) -> tuple[EnvRef, dict[str, Any]]:
    for part in ("org", "project", "env"):
        name = given.get(part)
        if not isinstance(name, str) or find_name_problem(name):
            raise InvalidRule(
                f"{what.capitalize()} {given.get('name')!r}: {part} is missing or not a valid name. "
                "Nothing was changed."
            )
    rest = {key: value for key, value in given.items() if key not in ("org", "project", "env")}
    return EnvRef(given["org"], given["project"], given["env"]), rest


def _parse_spans(given: dict[str, Any]) -> dict[str, Any]:
    """Convert durations to the fields of a rule: `window = "5m"` → `window_s = 300`. Raises InvalidRule."""
    fields = {key: value for key, value in given.items() if key not in SPANS}
    for key, (field, per_s, most) in SPANS.items():
        if key in given:
            kind = duration("0s", f"{most}s")
            try:
                fields[field] = int(round(kind.parse(given[key]) * per_s, 6))
            except (ValueError, KeyError):
                raise InvalidRule(
                    f"Rule {given.get('name')!r}: {key} must be {kind.allowed}, not {given[key]!r}. "
                    "Nothing was changed."
                ) from None
    return fields


def _refuse_duplicates(changes: list[PlanChange]) -> None:
    seen: set[tuple[str, EnvRef, str]] = set()
    for change in changes:
        key = (change.what, change.env, change.name)
        if key in seen:
            raise InvalidRule(f"The file declares {change.what} {change.name!r} twice. Nothing was changed.")
        seen.add(key)
