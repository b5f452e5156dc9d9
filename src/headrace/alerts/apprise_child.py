"""Sends one message with Apprise: `python -m headrace.alerts.apprise_child`, told what by JSON on standard input.

Apprise's plugins reach hosts that their URLs name, some follow redirects, some act on the machine itself. Here, in a
process that does nothing else, every connection passes `guarded`, which lets none through to a private address.
"""

from __future__ import annotations

import json
import logging
import socket
import sys
from typing import Any

from headrace.alerts.channels import LOCAL_SCHEMES
from headrace.webhook.guard import AddressRefused, checked_address

refused: list[str] = []


def install_guard() -> None:
    """For all sockets that are made from now on, whichever library makes them."""
    connect, connect_ex = socket.socket.connect, socket.socket.connect_ex
    send_to: Any = socket.socket.sendto

    def guarded(made: socket.socket, address: Any) -> Any:
        if made.family not in (socket.AF_INET, socket.AF_INET6) or not isinstance(address, tuple):
            refused.append("it would act on the machine of this server")
            raise AddressRefused(refused[-1])
        try:
            return checked_address(address[0], address[1], allow_private=False), *address[1:]
        except AddressRefused as error:
            refused.append(str(error))
            raise OSError(str(error)) from error

    def guarded_connect(self: socket.socket, address: Any) -> None:
        connect(self, guarded(self, address))

    def guarded_connect_ex(self: socket.socket, address: Any) -> int:
        return connect_ex(self, guarded(self, address))

    def guarded_send_to(self: socket.socket, data: Any, *others: Any) -> int:
        return send_to(self, data, *others[:-1], guarded(self, others[-1]))

    socket.socket.connect = guarded_connect
    socket.socket.connect_ex = guarded_connect_ex
    socket.socket.sendto = guarded_send_to


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

    if not given["allow_private"]:
        install_guard()
    refuse_redirects()
    target = apprise.Apprise.instantiate(given["url"])
    if target is None:
        print("it does not know this URL, or a library for it is not installed")
        return 1
    if str(getattr(target, "schema", "")).lower() in LOCAL_SCHEMES:
        print("it would act on the machine of this server")
        return 1
    sender = apprise.Apprise()
    sender.add(target)
    if sender.notify(body=given["body"], title=given["title"], notify_type=apprise.NotifyType(given["kind"])):
        return 0
    print(refused[-1] if refused else "the service did not take it")
    return 1


if __name__ == "__main__":
    sys.exit(main())
