"""Build and validate channels, and mask their secrets.

Addresses and secrets are stored in `config`, which is never shown. Users see the type, the name and `target`: the host
of a URL without its path, because the path is the secret of most services; email addresses are shown in full.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from headrace.alerts.channel_policy import DEFAULT_POLICY, ChannelPolicy
from headrace.alerts.records import Channel
from headrace.alerts.rules import InvalidRule
from headrace.model.names import EnvRef, find_name_problem
from headrace.webhook.guard import validate_url

TYPES = ("slack", "email", "webhook", "apprise")
FIELDS_BY_TYPE = {"slack": {"url"}, "email": {"to"}, "webhook": {"url", "secret"}, "apprise": {"url"}}
COMMON_FIELDS = {"name", "type", "health", "enabled"}
MAX_RECIPIENTS = 20
MAX_URL = 2000
MIN_SECRET, MAX_SECRET = 16, 500
EMAIL_PATTERN = re.compile(r"[^\s@<>,;:\"()\[\]\\]+@[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")


def make_channel(
    channel_id: str,
    tenant: EnvRef,
    given: Mapping[str, Any],
    before: Channel | None = None,
    policy: ChannelPolicy = DEFAULT_POLICY,
) -> tuple[Channel, str | None]:
    """Return the channel with these fields, and the generated secret or None. Raises InvalidRule.

    With `before`, omitted addresses and secrets are unchanged.
    """
    kind = given.get("type", before.type if before else None)
    if kind not in TYPES:
        raise _invalid_channel(given, f"type must be one of {', '.join(TYPES)}")
    if unknown := given.keys() - COMMON_FIELDS - FIELDS_BY_TYPE[kind]:
        raise _invalid_channel(given, f"unknown field for type {kind}: {', '.join(sorted(unknown))}")
    name: Any = given.get("name", before.name if before else "")
    if problem := find_name_problem(name) if isinstance(name, str) else "must be text":
        raise _invalid_channel(given, f"name {problem}")
    kept = before.config if before and before.type == kind else {}
    config = {**kept, **{key: given[key] for key in FIELDS_BY_TYPE[kind] if given.get(key) is not None}}
    new_secret = None
    if kind == "webhook" and "secret" not in config:
        config["secret"] = new_secret = secrets.token_hex(32)
    _check(given, kind, config)
    # A channel that is no longer allowed can still be renamed and disabled; its messages are refused when sent.
    is_new = before is None or before.type != kind or before.config != config
    if is_new and (problem := policy.find_problem(kind, config, tenant.org)):
        raise _invalid_channel(given, problem)
    flags = {flag: given.get(flag, getattr(before, flag) if before else flag == "enabled") for flag in FLAGS}
    if not all(isinstance(flag, bool) for flag in flags.values()):
        raise _invalid_channel(given, "health and enabled must be true or false")
    where = (tenant.org, tenant.project, tenant.env)
    return Channel(channel_id, *where, name, kind, config, mask_target(kind, config), **flags), new_secret


FLAGS = ("health", "enabled")


def mask_target(kind: str, config: Mapping[str, Any]) -> str:
    if kind == "email":
        return ", ".join(config["to"])
    parts = urlsplit(config["url"])
    if kind == "apprise":
        return f"{parts.scheme}://***"
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}/***"


def _check(given: Mapping[str, Any], kind: str, config: Mapping[str, Any]) -> None:
    if kind == "email":
        to: Any = config.get("to")
        if not isinstance(to, list) or not 0 < len(to) <= MAX_RECIPIENTS:
            raise _invalid_channel(given, f"to must be a list of 1 to {MAX_RECIPIENTS} addresses")
        if bad := [one for one in to if not isinstance(one, str) or not EMAIL_PATTERN.fullmatch(one)]:
            raise _invalid_channel(given, f"{bad[0]!r} is not an email address")
        return
    url: Any = config.get("url")
    if not isinstance(url, str) or not 0 < len(url) <= MAX_URL or not url.isprintable():
        raise _invalid_channel(given, f"url must be text of 1 to {MAX_URL} printable characters")
    if kind != "apprise":
        try:
            validate_url(url)
        except ValueError as error:
            raise _invalid_channel(given, f"url {error}") from None
    secret: Any = config.get("secret", "x" * MIN_SECRET)
    if not isinstance(secret, str) or not MIN_SECRET <= len(secret) <= MAX_SECRET or not secret.isprintable():
        raise _invalid_channel(given, f"secret must be text of {MIN_SECRET} to {MAX_SECRET} printable characters")


def _invalid_channel(given: Mapping[str, Any], why: str) -> InvalidRule:
    return InvalidRule(f"Invalid channel {given.get('name', '')!r}: {why}. Nothing was changed.")
