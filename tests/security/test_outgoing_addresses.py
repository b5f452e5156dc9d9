"""A tenant points a channel at the machine itself, the network behind it or a cloud's metadata service."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.alerts.messages import AlertMessage
from headrace.alerts.rules import Rule
from headrace.alerts.senders import send
from headrace.autoscale.webhook_workers import WebhookReceiver as WebhookReceiver
from headrace.autoscale.webhook_workers import WebhookWorkers
from headrace.cli.main import headrace
from headrace.settings import load_settings
from headrace.webhook import guard
from headrace.webhook.guard import AddressPolicy, AddressRefused, is_public, resolve_addresses
from tests.alerting import LOCAL, Receiver, http_receiver, mail_server
from tests.conftest import LONG_S, wait_until

SECRET = "0123456789abcdef"
MESSAGE = AlertMessage("m-1", "test", Rule("r", "acme", "shop", "prod", "", ""), [])
PRIVATE = AddressPolicy(allow_private=True)
METADATA = ("169.254.169.254", "fd00:ec2::254", "168.63.129.16", "192.0.0.192", "100.100.100.200", "fd20:ce::254")
RESTRICTED = (
    *METADATA,
    *("127.0.0.1", "127.8.8.8", "::1", "0.0.0.0", "::", "169.254.1.1", "fe80::1", "224.0.0.1", "ff02::1"),
    *("255.255.255.255", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"),
)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with http_receiver() as made:
        yield made


@pytest.mark.timeout(LONG_S)  # Apprise takes seconds to load
@pytest.mark.parametrize("kind", ["slack", "webhook", "apprise"])
def test_allowing_private_networks_does_not_open_loopback(
    receiver: Receiver, postgres_url: str, tmp_path: Path, kind: str
) -> None:
    url = receiver.url.replace("http:", "json:") if kind == "apprise" else receiver.url
    where = 'org = "acme"\nproject = "shop"\nenv = "prod"\n'
    (tmp_path / "alerts.toml").write_text(f'[[channel]]\n{where}name = "ops"\ntype = "{kind}"\nurl = "{url}"\n')
    env = {"HEADRACE_POSTGRES_URL": postgres_url, "HEADRACE_ALERTS_ALLOW_PRIVATE": "true"}
    made = CliRunner().invoke(headrace, ["alerts", "apply", str(tmp_path / "alerts.toml")], env=env)
    assert made.exit_code == 0, made.output
    sent = CliRunner().invoke(headrace, ["alerts", "test", "acme", "shop", "prod", "ops"], env=env)
    assert sent.exit_code != 0
    assert "127.0.0.1, which is not a public address" in sent.stderr
    assert receiver.received == []
    env["HEADRACE_ALERTS_ALLOWED_HOSTS"] = "127.0.0.1"
    sent = CliRunner().invoke(headrace, ["alerts", "test", "acme", "shop", "prod", "ops"], env=env)
    assert sent.exit_code == 0, sent.output
    assert len(receiver.received) == 1


def test_mail_goes_to_a_listed_server_only() -> None:
    with mail_server() as mailbox:
        options = replace(LOCAL, smtp_url=mailbox.url, policy=PRIVATE)
        with pytest.raises(AddressRefused, match=r"127\.0\.0\.1.*alerts\.allowed_hosts"):
            send("email", {"to": ["ann@example.org"]}, MESSAGE, options)
        assert mailbox.letters == []


def test_the_autoscaler_does_not_reach_loopback(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    policy = AddressPolicy(("127.0.0.0/8",), allow_private=True, setting="autoscale.allowed_hosts")
    workers = WebhookWorkers("mail", WebhookReceiver(receiver.url, SECRET, policy=policy))
    workers.scale(4)

    def refused() -> bool:
        workers.reconcile()
        return "add it to autoscale.allowed_hosts" in caplog.text

    wait_until(refused, "the webhook is refused")
    workers.stop()
    assert receiver.received == []


@pytest.mark.parametrize("address", RESTRICTED)
def test_no_network_opens_restricted_addresses(address: str) -> None:
    everything = AddressPolicy(("0.0.0.0/0", "::/0", "169.254.0.0/16", "fd00:ec2::/32"), allow_private=True)
    for policy in (PRIVATE, everything):
        with pytest.raises(AddressRefused, match="metadata address"):
            resolve_addresses(address, 80, policy)


@pytest.mark.parametrize("address", RESTRICTED)
def test_the_exact_address_opens_it(address: str) -> None:
    assert resolve_addresses(address, 80, AddressPolicy((address,)))


def test_a_listed_name_opens_that_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolved(*_: Any, **__: Any) -> list[Any]:
        return [(2, 1, 6, "", ("127.0.0.1", 80))]

    monkeypatch.setattr(guard.socket, "getaddrinfo", resolved)
    policy = AddressPolicy(("hooks.internal",))
    assert resolve_addresses("Hooks.Internal.", 80, policy)[0] == "127.0.0.1"
    for other in ("x.hooks.internal", "hooks.internal.example", "127.0.0.1"):
        with pytest.raises(AddressRefused):
            resolve_addresses(other, 80, policy)


@pytest.mark.timeout(LONG_S)
def test_apprise_reaches_a_listed_name(receiver: Receiver) -> None:
    url = receiver.url.replace("http://127.0.0.1", "json://localhost")
    for policy in (AddressPolicy(("localhost.example",)), PRIVATE):
        with pytest.raises(Exception, match="not a public address"):
            send("apprise", {"url": url}, MESSAGE, replace(LOCAL, policy=policy))
    assert receiver.received == []
    send("apprise", {"url": url}, MESSAGE, replace(LOCAL, policy=AddressPolicy(("localhost",))))
    assert len(receiver.received) == 1


@pytest.mark.parametrize("address", ["3fff::1", "3fff:fff:ffff::1", *METADATA])
def test_networks_that_python_takes_for_public_are_not(address: str) -> None:
    assert not is_public(address)


def test_hosts_are_read_from_settings_in_one_notation() -> None:
    flags = {"alerts.allowed_hosts": "Hooks.Internal, 10.1.0.0/16,FD00:0:0::1", "autoscale.allowed_hosts": ["::1"]}
    settings = load_settings(flags, {}, None).settings
    assert settings.alerts.allowed_hosts == ("hooks.internal", "10.1.0.0/16", "fd00::1")
    assert settings.autoscale.allowed_hosts == ("::1",)


@pytest.mark.parametrize("given", ["10.1.0.1/16", "300.1.1.1", "a b", "http://x", "x:80", ","])
def test_hosts_that_cannot_be_meant_are_refused(given: str) -> None:
    with pytest.raises(Exception, match=r"alerts\.allowed_hosts"):
        load_settings({"alerts.allowed_hosts": given}, {}, None)
