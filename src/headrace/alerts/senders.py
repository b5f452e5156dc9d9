"""Send messages to channels, by channel type.

A sender returns a note if only some recipients were reached, otherwise None. It raises DeliveryFailed or AddressRefused
if the message was not accepted; Rejected, a DeliveryFailed, means that a retry is pointless.
"""

from __future__ import annotations

import json
import smtplib
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from headrace.alerts.channel_policy import DEFAULT_POLICY, ChannelPolicy
from headrace.alerts.messages import AlertMessage
from headrace.webhook.guard import PUBLIC_ONLY, AddressPolicy, is_loopback, resolve_addresses
from headrace.webhook.post import DeliveryFailed, DeliveryRejected, post
from headrace.webhook.signing import post_signed

EMOJI = {"info": "ℹ️", "warning": "⚠️", "critical": "🔥"}


@dataclass(frozen=True)
class SendOptions:
    timeout_s: float = 10.0
    policy: AddressPolicy = PUBLIC_ONLY
    public_url: str | None = None
    smtp_url: str | None = field(default=None, repr=False)
    email_from: str = "headrace@localhost"
    channels: ChannelPolicy = DEFAULT_POLICY
    starttls: str | None = None  # required or optional; None: optional for a server on loopback


def send(
    kind: str, config: Mapping[str, Any], message: AlertMessage, options: SendOptions, org: str | None = None
) -> str | None:
    """Send a message and return a note on partial delivery; None if it reached everyone.

    `org` is the organisation of the channel (default: that of the message's rule).
    """
    if problem := options.channels.find_problem(kind, config, message.rule.org if org is None else org):
        raise DeliveryFailed(f"Nothing was sent: {problem}.")
    return SENDERS[kind](config, message, options)


def _send_webhook(config: Mapping[str, Any], message: AlertMessage, options: SendOptions) -> None:
    post_signed(
        config["url"],
        config["secret"],
        message.id,
        message.render_document(options.public_url),
        timeout_s=options.timeout_s,
        policy=options.policy,
    )


def _send_slack(config: Mapping[str, Any], message: AlertMessage, options: SendOptions) -> None:
    mark = "✅" if message.kind == "resolved" else EMOJI.get(message.rule.severity, "")
    lines = "\n".join(_escape(line) for line in message.render_lines(options.public_url))
    blocks = [
        {"type": "section", "text": {"type": "mrkdwn", "text": f"{mark} *{_escape(message.title)}*"[:2900]}},
        {"type": "section", "text": {"type": "mrkdwn", "text": lines[:2900]}},
        {"type": "context", "elements": [{"type": "plain_text", "text": message.id}]},
    ]
    body = json.dumps({"text": _escape(message.title), "blocks": blocks}).encode()
    headers = {"Content-Type": "application/json", "X-Headrace-Delivery": message.id}
    post(config["url"], body, headers, timeout_s=options.timeout_s, policy=options.policy)


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _send_email(config: Mapping[str, Any], message: AlertMessage, options: SendOptions) -> str | None:
    if options.smtp_url is None:
        raise DeliveryFailed("No mail server is configured: set alerts.smtp_url.")
    mail = EmailMessage()
    headers = {
        "Subject": message.title,
        "From": options.email_from,
        "To": ", ".join(config["to"]),
        "Message-ID": f"<{message.id}@headrace>",  # the same for each attempt
        "X-Headrace-Delivery": message.id,
        "Auto-Submitted": "auto-generated",
    }
    for name, value in headers.items():
        mail[name] = value
    mail.set_content(message.render_text(options.public_url))
    try:
        refused = _deliver(mail, options.smtp_url, options)
    except (smtplib.SMTPException, OSError) as error:
        failure = DeliveryRejected if _is_permanent(error) else DeliveryFailed
        raise failure(f"The mail server rejected the message: {type(error).__name__}: {error}") from error
    if not refused:
        return None
    named = ", ".join(
        f"{address} ({code} {reply.decode(errors='replace')})" for address, (code, reply) in refused.items()
    )
    return f"The mail server rejected {named}; the other recipients received it."


def _is_permanent(error: Exception) -> bool:
    """Return True if the server answered 5xx to the message or to all of its recipients.

    A failed login is not permanent: the settings can be corrected while the message waits.
    """
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return all(code >= 500 for code, _ in error.recipients.values())
    is_answer = isinstance(error, smtplib.SMTPResponseException)
    return is_answer and not isinstance(error, smtplib.SMTPAuthenticationError) and error.smtp_code >= 500


class _PinnedSmtp(smtplib.SMTP):
    """SMTP connection to the first of the checked addresses that answers. With a context it uses TLS from the start;
    certificates are verified for the host."""

    def __init__(
        self, addresses: Sequence[str], host: str, port: int, timeout_s: float, context: ssl.SSLContext | None
    ) -> None:
        self.address = ""
        self._addresses = addresses
        self._context = context
        super().__init__(host, port, timeout=timeout_s)

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        plain = self._connect(port, timeout)
        return plain if self._context is None else self._context.wrap_socket(plain, server_hostname=host)

    def _connect(self, port: int, timeout_s: float) -> socket.socket:
        *others, last = self._addresses
        for self.address in others:
            with suppress(OSError):
                return socket.create_connection((self.address, port), timeout_s)
        self.address = last
        return socket.create_connection((last, port), timeout_s)


def must_encrypt(starttls: str | None, address: str) -> bool:
    return not is_loopback(address) if starttls is None else starttls == "required"


def _open_mail_server(parts: SplitResult, options: SendOptions) -> _PinnedSmtp:
    """Connect to the mail server. Raises AddressRefused; OSError or SMTPException if it cannot be reached."""
    host, is_tls = parts.hostname or "localhost", parts.scheme == "smtps"
    port = parts.port or (465 if is_tls else 25)
    addresses = resolve_addresses(host, port, options.policy)
    return _PinnedSmtp(addresses, host, port, options.timeout_s, ssl.create_default_context() if is_tls else None)


def _deliver(mail: EmailMessage, url: str, options: SendOptions) -> dict[str, tuple[int, bytes]]:
    """Send the mail and return the rejected recipients, if others were accepted."""
    parts = urlsplit(url)
    with _open_mail_server(parts, options) as server:
        server.ehlo()
        is_required = parts.scheme == "smtp" and must_encrypt(options.starttls, server.address)
        if is_required and not server.has_extn("starttls"):
            raise DeliveryFailed(
                "The mail server does not offer STARTTLS. Neither password nor message was sent. Use smtps://, "
                "or set alerts.smtp_starttls = optional."
            )
        if parts.scheme == "smtp" and server.has_extn("starttls"):
            server.starttls(context=ssl.create_default_context())
            server.ehlo()
        if parts.username:
            server.login(unquote(parts.username), unquote(parts.password or ""))
        return server.send_message(mail)


def _send_apprise(config: Mapping[str, Any], message: AlertMessage, options: SendOptions) -> None:
    """Send in a separate process without environment, where `apprise_child` restricts the plugins."""
    request = {
        "url": config["url"],
        "title": message.title,
        "body": "\n".join(message.render_lines(options.public_url)),
        "kind": "success" if message.kind == "resolved" else _APPRISE_KIND.get(message.rule.severity, "info"),
        "schemes": sorted(options.channels.apprise_schemes),
        "allowed_hosts": options.policy.allowed_hosts,
        "allow_private": options.policy.allow_private,
    }
    command = [sys.executable, "-I", "-B", "-m", "headrace.alerts.apprise_child"]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(request).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=options.timeout_s + 10,
            check=False,
            env={},
            cwd="/",
        )
    except subprocess.TimeoutExpired:
        raise DeliveryFailed(f"Apprise did not finish within {options.timeout_s + 10:g} s.") from None
    if done.returncode:
        lines = done.stdout.decode(errors="replace").strip().splitlines()
        raise DeliveryFailed(
            f"Apprise could not send the message: {lines[-1] if lines else f'exit code {done.returncode}, no output'}"
        )


_APPRISE_KIND = {"info": "info", "warning": "warning", "critical": "failure"}

Sender = Callable[[Mapping[str, Any], AlertMessage, SendOptions], str | None]
SENDERS: dict[str, Sender] = {
    "webhook": _send_webhook,
    "slack": _send_slack,
    "email": _send_email,
    "apprise": _send_apprise,
}
