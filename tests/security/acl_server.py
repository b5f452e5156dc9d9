"""A Valkey whose only enabled user is the administrator, for tests of ACL rules."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from headrace.cli.valkey_roles import ValkeyRole, build_acl_words
from headrace.embedded.process import LOOPBACK, EmbeddedServer
from headrace.embedded.valkey import find_server
from headrace.valkey.connect import connect
from headrace.valkey.probe import read_server_version

ADMIN_PASSWORD = "of-the-administrator"
PASSWORD = "of-a-part"


class AclValkey(EmbeddedServer):
    name = "valkey-acl"

    @property
    def url(self) -> str:
        """Return the URL of the administrator."""
        return f"redis://:{ADMIN_PASSWORD}@{LOOPBACK}:{self.port}/0"

    @property
    def anonymous_url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/0"

    @property
    def user_file(self) -> Path:
        """Return the path of the ACL file."""
        return self.data_dir / "users.acl"

    def start(self) -> None:
        self.data_dir.mkdir(parents=True)
        self.user_file.write_text(f"user default on >{ADMIN_PASSWORD} ~* &* +@all\n")
        super().start()

    def command(self) -> Sequence[str]:
        return [
            find_server("bundled"),
            *("--bind", LOOPBACK, "--port", str(self.port), "--dir", str(self.data_dir), "--save", ""),
            *("--appendonly", "no", "--daemonize", "no", "--aclfile", str(self.user_file)),
            *("--enable-debug-command", "yes"),  # so that only the ACL rules of a user deny a command
        ]

    def ping(self) -> str | None:
        return read_server_version(self.url)

    def create_user(self, role: ValkeyRole) -> str:
        """Create the user of a role and return its URL."""
        digest = hashlib.sha256(PASSWORD.encode()).hexdigest()
        with connect(self.url) as client:
            client.execute_command("ACL", "SETUSER", *build_acl_words(role, role.name, digest))
        return f"redis://{role.name}:{PASSWORD}@{LOOPBACK}:{self.port}/0"

    def load_users(self, lines: Sequence[str]) -> None:
        """Add lines to the ACL file and let the server load it."""
        before = self.user_file.read_text()
        self.user_file.write_text(before + "\n".join(lines) + "\n")
        try:
            with connect(self.url) as client:
                client.execute_command("ACL", "LOAD")
        finally:
            self.user_file.write_text(before)

    def send_lines(self, lines: Sequence[str]) -> None:
        """Send inline commands as the administrator; the reply to each must be OK."""
        with socket.create_connection((LOOPBACK, self.port)) as connection, connection.makefile("rwb") as stream:
            for line in (f"AUTH {ADMIN_PASSWORD}", *lines):
                stream.write(f"{line}\r\n".encode())
                stream.flush()
                assert stream.readline() == b"+OK\r\n", line

    def read_denials(self) -> list[str]:
        """Return what the server denied since the last call: user, kind and object of each."""
        with connect(self.url) as client:
            found = cast("list[Any]", client.execute_command("ACL", "LOG"))
            client.execute_command("ACL", "LOG", "RESET")
        entries = [
            entry if isinstance(entry, dict) else dict(zip(entry[::2], entry[1::2], strict=True)) for entry in found
        ]
        texts = [{_text(key): _text(value) for key, value in entry.items()} for entry in entries]
        return [f"{entry['username']}: {entry['reason']} {entry['object']}" for entry in texts]

    def reset(self) -> None:
        """Remove all keys, and all users except the administrator."""
        with connect(self.url) as client:
            client.flushall()
            for user in cast("list[Any]", client.execute_command("ACL", "USERS")):
                if _text(user) != "default":
                    client.execute_command("ACL", "DELUSER", user)
            client.execute_command("ACL", "LOG", "RESET")


class AclCluster(AclValkey):
    """A cluster of one node."""

    name = "valkey-acl-cluster"

    def command(self) -> Sequence[str]:
        return [*super().command(), "--cluster-enabled", "yes"]

    def create_user(self, role: ValkeyRole) -> str:
        return super().create_user(role).replace("redis://", "redis+cluster://").removesuffix("/0")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
