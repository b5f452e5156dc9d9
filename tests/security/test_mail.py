"""Attacks on email: an attacker reads messages on the way, or a tenant sends email in the operator's name."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from headrace.alerts import senders
from headrace.alerts.channel_policy import DEFAULT_POLICY, ChannelPolicy
from headrace.alerts.channels import make_channel
from headrace.alerts.messages import AlertMessage
from headrace.alerts.rules import InvalidRule, Rule
from headrace.alerts.senders import must_encrypt, send
from headrace.api.access import KeyScope
from headrace.api.services import Services
from headrace.model.names import EnvRef
from headrace.settings import SETTINGS, AlertsSettings, load_settings
from headrace.webhook.guard import AddressPolicy
from headrace.webhook.post import DeliveryFailed
from tests.access import client_with_key
from tests.alerting import LOCAL, Mailbox, mail_server

MESSAGE = AlertMessage("m-1", "test", Rule("r", "acme", "shop", "prod", "", ""), [])
ACME, EVIL = EnvRef("acme", "shop", "prod"), EnvRef("evil", "shop", "prod")
DOMAINS = {"alerts.email_domains": {"acme": ["Example.org", "example.com"], "*": ["corp.example"], "none": []}}


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with mail_server() as made:
        yield made


@pytest.mark.parametrize(
    ("starttls", "address", "expected"),
    [
        (None, "203.0.113.5", True),
        (None, "10.0.0.5", True),
        (None, "127.0.0.1", False),
        (None, "::1", False),
        ("required", "127.0.0.1", True),
        ("optional", "203.0.113.5", False),
    ],
)
def test_encryption_is_required_beyond_loopback(starttls: str | None, address: str, expected: bool) -> None:
    assert must_encrypt(starttls, address) == expected


def test_nothing_is_sent_in_clear_where_starttls_was_stripped(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server, or an attacker in front of it, does not offer STARTTLS."""
    url = mailbox.url.replace("smtp://", "smtp://user:S3CRET@")
    monkeypatch.setattr(senders, "is_loopback", lambda _: False)  # pyright: ignore[reportUnknownLambdaType]
    with pytest.raises(DeliveryFailed, match=r"alerts\.smtp_starttls"):
        send("email", {"to": ["ann@example.org"]}, MESSAGE, replace(LOCAL, smtp_url=url))
    assert mailbox.letters == []
    assert {line.split()[0].upper() for line in mailbox.commands} <= {"EHLO", "QUIT"}
    send("email", {"to": ["ann@example.org"]}, MESSAGE, replace(LOCAL, smtp_url=mailbox.url, starttls="optional"))
    assert len(mailbox.letters) == 1


def test_a_server_is_found_among_its_addresses(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """`localhost` often resolves to ::1 first, where no mail server listens."""
    resolve = socket.getaddrinfo

    def resolved(host: Any, *given: Any, **named: Any) -> Any:
        if host != "mail.internal":
            return resolve(host, *given, **named)
        return [(2, 1, 6, "", ("127.0.0.2", 25)), (2, 1, 6, "", ("127.0.0.1", 25))]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    url = mailbox.url.replace("127.0.0.1", "mail.internal")
    options = replace(LOCAL, smtp_url=url, policy=AddressPolicy(("mail.internal",)))
    send("email", {"to": ["ann@example.org"]}, MESSAGE, options)
    assert len(mailbox.letters) == 1


@pytest.fixture
def policy() -> ChannelPolicy:
    return ChannelPolicy.from_settings(load_settings(DOMAINS, {}, None).settings.alerts)


@pytest.mark.parametrize(
    ("org", "address", "is_allowed"),
    [
        ("acme", "ann@example.org", True),
        ("acme", "ann@EXAMPLE.com", True),
        ("acme", "ann@corp.example", False),
        ("acme", "ann@sub.example.org", False),
        ("acme", "ann@example.org.evil.example", False),
        ("evil", "ann@example.org", False),
        ("evil", "ann@corp.example", True),
        ("none", "ann@corp.example", False),
    ],
)
def test_recipients_are_those_of_the_organisation(
    policy: ChannelPolicy, mailbox: Mailbox, org: str, address: str, is_allowed: bool
) -> None:
    given, options = {"to": [address]}, replace(LOCAL, smtp_url=mailbox.url, channels=policy)
    if is_allowed:
        make_channel("c", EnvRef(org, "p", "e"), {"name": "n", "type": "email", **given}, policy=policy)
        send("email", given, MESSAGE, options, org)
    else:
        with pytest.raises(InvalidRule, match=r"alerts\.email_domains"):
            make_channel("c", EnvRef(org, "p", "e"), {"name": "n", "type": "email", **given}, policy=policy)
        with pytest.raises(DeliveryFailed, match=r"alerts\.email_domains"):  # a channel created by an earlier version
            send("email", given, MESSAGE, options, org)
    assert len(mailbox.letters) == is_allowed


def test_one_stranger_among_recipients_is_enough_to_refuse(policy: ChannelPolicy) -> None:
    to = ["ann@example.org", "victim@elsewhere.example"]
    assert "victim@elsewhere.example" in str(policy.find_problem("email", {"to": to}, "acme"))


def test_without_a_setting_mail_stays_in_the_domain_of_its_sender() -> None:
    ours = ChannelPolicy.from_settings(AlertsSettings(email_from="headrace@example.org"))
    assert ours.find_problem("email", {"to": ["ann@example.org"]}, "acme") is None
    assert ours.find_problem("email", {"to": ["ann@example.com"]}, "acme") is not None
    assert DEFAULT_POLICY.find_problem("email", {"to": ["ann@example.org"]}, "acme") is not None


def test_a_tenant_cannot_make_a_channel_to_strangers(postgres_url: str, valkey_url: str) -> None:
    settings = load_settings(DOMAINS, {}, None).settings.alerts
    services = Services(valkey_url, "http://127.0.0.1:1", "x", 2, postgres_url, alerts=settings)
    api: TestClient = client_with_key(services, KeyScope("acme", "shop", "prod"))
    path = "/api/v1/alerts/channels"
    refused = api.post(path, json={"name": "n", "type": "email", "to": ["victim@elsewhere.example"]})
    assert (refused.status_code, "alerts.email_domains" in refused.json()["detail"]) == (400, True)
    made = api.post(path, json={"name": "n", "type": "email", "to": ["ann@example.org"]})
    assert made.status_code == 201
    changed = api.patch(f"{path}/{made.json()['id']}", json={"to": ["victim@elsewhere.example"]})
    assert changed.status_code == 400
    assert api.get(path).json()["channels"][0]["target"] == "ann@example.org"
    services.close()


def test_domains_are_read_from_the_environment_and_shown_as_they_are_read() -> None:
    loaded = load_settings({}, {"HEADRACE_ALERTS_EMAIL_DOMAINS": '{"acme": ["example.org"]}'}, None).settings.alerts
    assert loaded.email_domains == {"acme": ("example.org",)}
    assert SETTINGS["alerts.email_domains"].format(loaded.email_domains) == '{"acme": ["example.org"]}'


@pytest.mark.parametrize("given", ["example.org", '["x"]', '{"acme": "example.org"}', '{"acme": ["a@b"]}', "{"])
def test_domains_that_cannot_be_meant_are_refused(given: str) -> None:
    with pytest.raises(Exception, match=r"alerts\.email_domains"):
        load_settings({"alerts.email_domains": given}, {}, None)
