"""Sends one message with Apprise: `python -m headrace.alerts.apprise_child`, with JSON on standard input.

Apprise's plugins reach hosts that their URLs name, some follow redirects, some act on the machine itself. Here, in a
process that does nothing else, an audit hook sees every connection, whichever library makes it, and refuses those to
addresses that are not allowed.
"""

from __future__ import annotations

import json
import logging
import socket
import sys
from typing import Any, NoReturn

from headrace.alerts.channels import LOCAL_SCHEMES
from headrace.webhook.guard import AddressPolicy, refusal

SENDS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
LOCAL = "it would act on the machine of this server"

refused: list[str] = []


class ConnectionGuard:
    """An audit hook that lets connections through to allowed addresses only.

    It sees addresses, not names: libraries resolve a name first. Names that the policy lists are noted when they are
    looked up, and their addresses are allowed.
    """

    def __init__(self, policy: AddressPolicy) -> None:
        self._policy = policy
        self._listed: set[str] = set()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.getaddrinfo" and self._policy.names(_text(arguments[0])):
            self._listed.add(_text(arguments[0]))
        elif event in SENDS:
            self._check(*arguments[:2])

    def _check(self, made: socket.socket, address: Any) -> None:
        if address is None:  # sendmsg on a socket that is connected
            return
        if made.family not in (socket.AF_INET, socket.AF_INET6) or not isinstance(address, tuple):
            self._refuse(LOCAL)
        host = _text(address[0])
        try:
            is_allowed = self._policy.allows(host)
        except ValueError:
            self._refuse(f"{host} is not an address: names must be resolved before a connection is made")
        if not is_allowed and not any(host in _addresses(name) for name in set(self._listed)):
            self._refuse(refusal(host, host, self._policy))

    def _refuse(self, why: str) -> NoReturn:
        refused.append(why)
        raise OSError(why)


def _text(host: Any) -> str:
    return host.decode("ascii", "replace") if isinstance(host, bytes | bytearray) else str(host)


def _addresses(name: str) -> set[str]:
    return {str(each[4][0]) for each in socket.getaddrinfo(name, None)}


def refuse_redirects() -> None:
    import requests

    send = requests.Session.send

    def send_once(self: requests.Session, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        return send(self, request, **{**options, "allow_redirects": False})

    requests.Session.send = send_once


def main() -> int:
    given = json.load(sys.stdin)
    logging.disable()
    import apprise

    refuse_redirects()
    sys.addaudithook(ConnectionGuard(AddressPolicy(tuple(given["allowed_hosts"]), given["allow_private"])))
    target = apprise.Apprise.instantiate(given["url"])
    if target is None:
        print("it does not know this URL, or a library for it is not installed")
        return 1
    if str(getattr(target, "schema", "")).lower() in LOCAL_SCHEMES:
        print(LOCAL)
        return 1
    sender = apprise.Apprise()
    sender.add(target)
    if sender.notify(body=given["body"], title=given["title"], notify_type=apprise.NotifyType(given["kind"])):
        return 0
    print(refused[-1] if refused else "the service did not take it")
    return 1


if __name__ == "__main__":
    sys.exit(main())
