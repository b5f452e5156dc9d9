"""Send one message with Apprise: `python -m headrace.alerts.apprise_child`, with JSON on standard input.

Apprise plugins connect to hosts named in their URLs; some follow redirects, read files or act on the machine itself.
They run in this dedicated process: it has no environment and gains no privileges, its resources are limited, and audit
hooks check every connection, opened file and new process of any library.
"""

from __future__ import annotations

import ctypes
import json
import logging
import mimetypes
import os
import resource
import socket
import ssl
import sys
import sysconfig
from typing import Any, NoReturn

from headrace.alerts.channel_policy import LOCAL_SCHEMES, find_file_parameter
from headrace.webhook.guard import AddressPolicy, describe_refusal

PR_SET_NO_NEW_PRIVS = 38
LIMITS = {
    resource.RLIMIT_AS: 2**30,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_CPU: 60,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NOFILE: 64,
}
"""Resource limits: bytes, seconds of CPU time, open files."""

SENDS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
LOCAL_EVENTS = (
    *("subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system", "pty.", "ctypes.dlopen"),
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.chown", "os.truncate"),
    *("os.kill", "shutil.", "sqlite3.", "tempfile.", "signal."),
)
"""Prefixes of audit events that act on this machine."""
LOCAL_ACTION = "this plugin would act on the server's own machine"

refused: list[str] = []


def limit_process() -> None:
    """Limit the resources of this process and, on Linux, forbid new privileges. Raises OSError if that fails."""
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        if prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS failed")
    for limit, most in LIMITS.items():
        _, hard = resource.getrlimit(limit)
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (allowed, allowed))


class ConnectionGuard:
    """Audit hook that allows connections only to permitted addresses.

    The events carry addresses, not names, because libraries resolve names first. Names listed by the policy are
    recorded when they are looked up, and their addresses are allowed.
    """

    def __init__(self, policy: AddressPolicy) -> None:
        self._policy = policy
        self._listed: set[str] = set()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.getaddrinfo" and self._policy.is_allowed_host(_decode_host(arguments[0])):
            self._listed.add(_decode_host(arguments[0]))
        elif event in SENDS:
            self._check(*arguments[:2])

    def _check(self, made: socket.socket, address: Any) -> None:
        if address is None:  # sendmsg on a connected socket
            return
        if made.family not in (socket.AF_INET, socket.AF_INET6) or not isinstance(address, tuple):
            _refuse(LOCAL_ACTION)
        host = _decode_host(address[0])
        try:
            is_allowed = self._policy.is_allowed_address(host)
        except ValueError:
            _refuse(f"{host} is not an address: names must be resolved before connecting")
        if not is_allowed and not any(host in _resolve_addresses(name) for name in set(self._listed)):
            _refuse(describe_refusal(host, host, self._policy))


class MachineGuard:
    """Audit hook that refuses new processes, file changes, and reading of files other than those of Python, installed
    packages, certificates and media types."""

    def __init__(self) -> None:
        paths = sysconfig.get_paths()
        places = [*(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")), *filter(None, sys.path)]
        certificates = ssl.get_default_verify_paths()
        places += filter(None, (certificates.cafile, certificates.capath, certificates.openssl_cafile))
        places += [*mimetypes.knownfiles, "/usr/share/zoneinfo"]
        self._readable = tuple({os.path.realpath(place) for place in places})

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            self._check(arguments[0], arguments[2])
        elif event.startswith(LOCAL_EVENTS):
            _refuse(LOCAL_ACTION)

    def _check(self, path: Any, flags: int) -> None:
        if isinstance(path, int):  # an open file descriptor
            return
        real = os.path.realpath(os.fsdecode(path))
        is_readable = any(real == place or real.startswith(f"{place}{os.sep}") for place in self._readable)
        if not is_readable or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            _refuse("this plugin would use a file of the server")


def _refuse(why: str) -> NoReturn:
    refused.append(why)
    raise PermissionError(why)


def _decode_host(host: Any) -> str:
    return host.decode("ascii", "replace") if isinstance(host, bytes | bytearray) else str(host)


def _resolve_addresses(name: str) -> set[str]:
    return {str(each[4][0]) for each in socket.getaddrinfo(name, None)}


def restrict_requests() -> None:
    """Disable redirects, and passwords from the netrc file of the current user."""
    import requests

    send = requests.Session.send

    def send_once(self: requests.Session, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        return send(self, request, **{**options, "allow_redirects": False})

    def no_password(*_: Any, **__: Any) -> None: ...

    requests.Session.send = send_once
    setattr(requests.sessions, "get_netrc_auth", no_password)  # noqa: B010 - not exported


def main() -> int:
    limit_process()
    given = json.load(sys.stdin)
    logging.disable()
    import apprise

    restrict_requests()
    apprise.Apprise.instantiate("json://localhost")  # loads all plugins, while files may still be read
    sys.addaudithook(MachineGuard())
    sys.addaudithook(ConnectionGuard(AddressPolicy(tuple(given["allowed_hosts"]), given["allow_private"])))
    if (named := find_file_parameter(given["url"])) is not None:
        print(f"the parameter {named} may name a file on the server")
        return 1
    target = apprise.Apprise.instantiate(given["url"])
    if target is None:
        print(refused[-1] if refused else "unknown Apprise URL, or its library is not installed")
        return 1
    scheme = str(getattr(target, "schema", "")).lower()
    if scheme in LOCAL_SCHEMES or scheme not in given["schemes"]:
        print(LOCAL_ACTION if scheme in LOCAL_SCHEMES else f"{scheme}:// is not allowed")
        return 1
    sender = apprise.Apprise()
    sender.add(target)
    if sender.notify(body=given["body"], title=given["title"], notify_type=apprise.NotifyType(given["kind"])):
        return 0
    print(refused[-1] if refused else "the service rejected the message")
    return 1


if __name__ == "__main__":
    sys.exit(main())
