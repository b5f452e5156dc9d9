# ruff: noqa: RUF009 - `setting` returns a dataclass field, not a shared default value
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.kinds import Seconds, boolean, choice, duration, host, lists_by_name, optional, several, text, url
from headrace.settings.declare import METRICS_PORT, setting

_APPRISE_SCHEMES = (
    *("bark", "barks", "betterstack", "cliq", "dingtalk", "discord", "feishu", "firehydrant", "flock", "form", "forms"),
    *("gchat", "goalert", "goalerts", "gotify", "gotifys", "ifttt", "ilert", "incidentio", "jira", "json", "jsons"),
    *(
        "lark",
        "line",
        "mmost",
        "mmosts",
        "ntfy",
        "ntfys",
        "opsgenie",
        "pagerduty",
        "pagertree",
        "pbul",
        "pover",
        "prowl",
    ),
    *("rocket", "rockets", "ryver", "signl4", "slack", "spike", "splunk", "squadcast", "tgram", "twist", "victorops"),
    *("webex", "wecombot", "workflow", "workflows", "wxteams", "xml", "xmls", "zulip"),
)


@dataclass(frozen=True)
class AlertsSettings:
    every: Seconds = setting(30.0, "Interval between evaluations of the rules.", duration("100ms", "1h"))
    lease: Seconds = setting(
        15.0,
        "Lease of the evaluator: time without a heartbeat after which another process takes over.",
        duration("1s", "10m"),
    )
    max_lag: Seconds = setting(
        120.0, "Maximum lag of history; if it is further behind, rules keep their state.", duration("1s", "1d")
    )
    query_timeout: Seconds = setting(10.0, "Timeout for one ClickHouse query.", duration("100ms", "10m"))
    send_timeout: Seconds = setting(10.0, "Timeout for one message to a channel.", duration("100ms", "5m"))
    retry_interval: Seconds = setting(
        5.0, "Delay after a failed send to a channel; doubles with each consecutive failure.", duration("10ms", "1h")
    )
    max_retry_delay: Seconds = setting(
        900.0, "Maximum delay before a failed channel is retried.", duration("10ms", "1d")
    )
    give_up: Seconds = setting(
        3 * 86400.0, "Age after which a message whose send fails is dropped.", duration("1m", "365d")
    )
    keep: Seconds = setting(
        90 * 86400.0, "How long resolved incidents and sent messages are kept.", duration("1h", "3650d")
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "Hosts and networks that channels and email may use in addition to public addresses. Loopback, "
        "link-local, multicast and cloud metadata addresses are allowed only by their exact host or "
        "address.",
        several(host()),
    )
    allow_private: bool = setting(
        False,
        "Allow all private networks, as if they were listed in `alerts.allowed_hosts`; loopback is not included.",
        boolean(),
    )
    apprise_schemes: tuple[str, ...] = setting(
        _APPRISE_SCHEMES,
        "Apprise services that channels may use, by URL scheme.",
        several(text("letters and digits", r"[a-z0-9]+")),
    )
    smtp_url: str | None = setting(
        None,
        "SMTP server for email channels; none = email channels fail.",
        optional(url("smtp", "smtps")),
        secret=True,
    )
    smtp_starttls: str | None = setting(
        None,
        "Whether an `smtp://` server must offer STARTTLS; none = `required`, but `optional` for a server on loopback.",
        optional(choice("required", "optional")),
    )
    email_from: str = setting(
        "headrace@localhost", "Sender address of email.", text("an email address", r"[^\s@]+@[^\s@]+")
    )
    email_domains: Mapping[str, tuple[str, ...]] | None = setting(
        None,
        "Domains to which the channels of each organisation may send email. The organisation `*` means "
        "all that are not listed; the domain `*` means any domain. None = only the domain of "
        "`alerts.email_from`.",
        optional(lists_by_name(text("domains, or `*`", r"\*|[^\s@,]+"))),
    )
    metrics_port: int | None = setting(
        None,
        "Port of /metrics and /healthz for `headrace alerts run`; 0 = any free port, none = not served.",
        METRICS_PORT,
    )
