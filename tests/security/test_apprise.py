"""A tenant uses Apprise to read files, secrets of the process or services of the machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.alerts import senders
from headrace.alerts.channel_policy import LOCAL_SCHEMES, ChannelPolicy
from headrace.alerts.channels import make_channel
from headrace.alerts.messages import AlertMessage
from headrace.alerts.rules import InvalidRule, Rule
from headrace.alerts.senders import send
from headrace.settings import AlertsSettings, load_settings
from headrace.webhook.post import DeliveryFailed
from tests.alerting import ENV, LOCAL, Receiver, http_receiver
from tests.conftest import LONG_S

MESSAGE = AlertMessage("m-1", "test", Rule("r", "acme", "shop", "prod", "", ""), [])
DEFAULT_SCHEMES = AlertsSettings().apprise_schemes


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with http_receiver() as made:
        yield made


@pytest.mark.parametrize(
    "url",
    [
        "slack://T1/B1/token/?template=/etc/passwd",
        "discord://1/2?x=1&TEMPLATE=/etc/passwd",
        "discord://1/2?x=1;template=/etc/passwd",
        "discord://1/2?%74emplate=/etc/passwd",
        "discord://1/2? template =/etc/passwd",
        "json://host/?keyfile=/etc/passwd",
        "json://host/?subfile=/etc/passwd",
        "json://host/?pgppub=/etc/passwd",
    ],
)
def test_a_parameter_that_names_a_file_is_refused(url: str) -> None:
    with pytest.raises(InvalidRule, match="may name a file"):
        make_channel("c", ENV, {"name": "n", "type": "apprise", "url": url})
    with pytest.raises(DeliveryFailed, match="may name a file"):
        send("apprise", {"url": url}, MESSAGE, LOCAL)


@pytest.mark.parametrize(
    "scheme", ["mailto", "mqtt", "xmpp", "amqp", "apprise", "rsyslog", "vapid", "fcm", "smtp", "JELLYFIN"]
)
def test_services_that_the_operator_does_not_allow_are_refused(scheme: str) -> None:
    config = {"url": f"{scheme}://user:pass@host.example/x"}
    with pytest.raises(InvalidRule, match=r"alerts\.apprise_schemes"):
        make_channel("c", ENV, {"name": "n", "type": "apprise", **config})
    with pytest.raises(DeliveryFailed, match=r"alerts\.apprise_schemes"):  # a channel created by an earlier version
        send("apprise", config, MESSAGE, LOCAL)


def test_the_operator_widens_the_list_but_not_to_the_machine_itself() -> None:
    flags = {"alerts.apprise_schemes": ["slack", "mailto", *LOCAL_SCHEMES]}
    policy = ChannelPolicy.from_settings(load_settings(flags, {}, None).settings.alerts)
    assert policy.find_problem("apprise", {"url": "mailto://user:pass@example.org"}, "acme") is None
    for scheme in LOCAL_SCHEMES:
        assert "acts on the server's own machine" in str(
            policy.find_problem("apprise", {"url": f"{scheme}://"}, "acme")
        )


@pytest.mark.timeout(LONG_S)
def test_every_allowed_service_is_one_of_apprise() -> None:
    from apprise import Apprise

    known = {
        scheme
        for each in Apprise().details()["schemas"]
        for scheme in [*(each["protocols"] or ()), *(each["secure_protocols"] or ())]
    }
    assert not set(DEFAULT_SCHEMES) - known
    assert not LOCAL_SCHEMES & set(DEFAULT_SCHEMES)


def test_the_child_has_no_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment contains secrets of the settings, which plugins could send away."""
    found = tmp_path / "environment"
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n/usr/bin/env > {found}\n", "utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("HEADRACE_POSTGRES_URL", "postgresql://u:S3CRET@h/d")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setattr(senders.sys, "executable", str(program))
    send("apprise", {"url": "json://host.example/"}, MESSAGE, LOCAL)
    names = {line.partition("=")[0] for line in found.read_text("utf-8").splitlines()}
    assert names <= {"PWD", "SHLVL", "_", "OLDPWD"}, "what a shell sets itself"


def run_child(code: str) -> str:
    program = f"import sys\nfrom headrace.alerts import apprise_child as child\n{code}"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], env={}, capture_output=True, text=True, check=False, timeout=LONG_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_child_gains_no_privileges_and_its_resources_are_limited() -> None:
    status = run_child(
        "child.limit_process()\nprint(open('/proc/self/status').read(), open('/proc/self/limits').read())"
    )
    assert "NoNewPrivs:\t1" in status
    rows = {line[:26].strip(): line[26:].split()[:2] for line in status.splitlines() if line.startswith("Max ")}
    assert rows["Max file size"] == ["0", "0"]
    assert rows["Max core file size"] == ["0", "0"]
    assert rows["Max address space"] == [str(2**30)] * 2
    assert rows["Max open files"] == ["64", "64"]
    assert rows["Max cpu time"] == ["60", "60"]


@pytest.mark.parametrize(
    "action",
    [
        "open('/etc/passwd')",
        "open('/proc/self/environ', 'rb')",
        "__import__('os').open('/etc/passwd', 0)",
        "__import__('pathlib').Path('/etc/passwd').read_text()",
        "open(child.__file__, 'a')",
        "__import__('os').system('true')",
        "__import__('subprocess').run(['true'])",
        "__import__('os').fork()",
        "__import__('os').remove('/nonexistent')",
        "__import__('os').kill(1, 0)",
    ],
)
def test_plugins_use_neither_files_nor_processes(action: str) -> None:
    code = f"sys.addaudithook(child.MachineGuard())\ntry:\n    {action}\nexcept PermissionError as e:\n    print(e)"
    assert "this plugin would" in run_child(code)


@pytest.mark.parametrize(
    "action",
    [
        "s.socket().connect(('127.0.0.1', 1))",
        "s.socket().connect_ex(('127.0.0.1', 1))",
        "s.socket().connect(('localhost', 1))",
        "s.socket(s.AF_INET, s.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 1))",
        "s.socket(s.AF_INET, s.SOCK_DGRAM).sendmsg([b'x'], [], 0, ('127.0.0.1', 1))",
        "s.socket(s.AF_UNIX).connect('/run/docker.sock')",
        "s.create_connection(('localhost', 1))",
    ],
)
def test_plugins_reach_no_private_address_by_any_call(action: str) -> None:
    code = (
        "import socket as s\nsys.addaudithook(child.ConnectionGuard(child.AddressPolicy(allow_private=True)))\n"
        f"try:\n    {action}\nexcept PermissionError as e:\n    print('refused', e)"
    )
    assert run_child(code).startswith("refused")


@pytest.mark.timeout(LONG_S)
def test_what_is_allowed_still_arrives(receiver: Receiver) -> None:
    send("apprise", {"url": receiver.url.replace("http:", "json:")}, MESSAGE, LOCAL)
    [got] = receiver.received
    assert got.document["title"] == MESSAGE.title
