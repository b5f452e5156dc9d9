"""`headrace doctor --security`: the checks of the hardening checklist in docs/how-to/security.md.

`SETTING_RULES` lists the checks of settings and `SERVER_CHECKS` those of servers; add a row there to add a check.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import cast
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from headrace.app.endpoints import SERVERS, probe_version, resolve_endpoints
from headrace.cli.doctor_checks import DoctorCheck
from headrace.errors import HeadraceError
from headrace.postgres.rights import has_credential, is_encrypted, read_hosts, read_role_rights, remove_password
from headrace.settings import SETTINGS, LoadedSettings, Settings
from headrace.valkey.connect import connect, translate_errors
from headrace.valkey.probe import find_excess_rights
from headrace.webhook.guard import describe_danger

OTHERS_MODE_BITS = 0o077  # mode bits of the group and of other users
SECRET_FILES = ("*.key", "*.json")
"""Files in the data directory that contain keys, passwords or URLs with passwords."""

LOCAL_NAMES = frozenset({"", "localhost", "localhost.localdomain", "ip6-localhost"})
ENCRYPTED_SCHEMES = ("rediss", "https", "clickhouses")
CREDENTIAL_PARAMETERS = frozenset({"user", "username", "password"})

ACL_ADVICE = "Give each process a Valkey user with only the permissions of its role: `headrace acl`."
ROLE_ADVICE = "Use a role that owns this database and nothing else: ALTER ROLE … NOSUPERUSER NOCREATEROLE NOCREATEDB."


# Settings


@dataclass(frozen=True)
class SettingRule:
    key: str
    is_safe: Callable[[object], bool]
    advice: str
    unless: str = ""  # key of a setting that makes every value safe if it is set
    describe: Callable[[object], str] | None = None  # None: the value is formatted as in `config show`


def is_loopback(host: object) -> bool:
    """Return whether a host is this machine: a loopback address or name, or the directory of a Unix socket."""
    name = str(host).strip("[]")
    if name.startswith("/") or name.lower() in LOCAL_NAMES:
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def describe_private(allow_private: object) -> str:
    return "allows all private networks" if allow_private else "off"


def find_dangerous_hosts(allowed_hosts: object) -> list[str]:
    """Return the entries that allow loopback, metadata or link-local addresses or whole networks, with the reason."""
    hosts = cast("tuple[str, ...]", allowed_hosts)
    return [f"{host} ({danger})" for host in hosts if (danger := describe_danger(host)) is not None]


def describe_hosts(allowed_hosts: object) -> str:
    hosts = cast("tuple[str, ...]", allowed_hosts)
    return f"allows {', '.join(find_dangerous_hosts(hosts) or hosts)}" if hosts else "none"


SETTING_RULES = (
    SettingRule(
        "api.host",
        is_loopback,
        "Let the API listen on loopback, behind a proxy that terminates TLS.",
        unless="api.cookie_secure",
    ),
    SettingRule(
        "metrics.host",
        is_loopback,
        "/metrics and /healthz of workers and other processes need no key: let them listen on loopback.",
        unless="metrics.token",
    ),
    SettingRule(
        "alerts.allow_private",
        operator.not_,
        "Tenants choose where messages are sent: list the intended hosts in alerts.allowed_hosts instead.",
        describe=describe_private,
    ),
    SettingRule(
        "alerts.allowed_hosts",
        lambda hosts: not find_dangerous_hosts(hosts),
        "Tenants choose where messages are sent and can reach these addresses: list other hosts or smaller networks.",
        describe=describe_hosts,
    ),
    SettingRule(
        "autoscale.allow_private",
        operator.not_,
        "List the intended hosts in autoscale.allowed_hosts instead.",
        describe=describe_private,
    ),
    SettingRule(
        "autoscale.allowed_hosts",
        lambda hosts: not find_dangerous_hosts(hosts),
        "List only the hosts that receive the autoscaler's webhook requests.",
        describe=describe_hosts,
    ),
)


def check_setting(rule: SettingRule, settings: Settings) -> DoctorCheck:
    setting = SETTINGS[rule.key]
    value = setting.get_value(settings)
    other = SETTINGS.get(rule.unless)
    is_safe = rule.is_safe(value) or (other is not None and bool(other.get_value(settings)))
    found = (rule.describe or setting.format)(value)
    return DoctorCheck(rule.key, is_safe, found, "" if is_safe else rule.advice)


# Files


def check_settings_file(loaded: LoadedSettings) -> DoctorCheck:
    """Check that only the owner can read a settings file that contains secrets."""
    secret = {
        origin.name
        for key, origin in loaded.origins.items()
        if origin.source == "file" and SETTINGS[key].secret and SETTINGS[key].get_value(loaded.settings)
    }
    if not secret:
        return DoctorCheck("settings file", True, "has no secrets")
    return _check_modes("settings file", [Path(name) for name in sorted(secret)])


def check_data_directory(data_dir: Path) -> DoctorCheck:
    if not data_dir.exists():
        return DoctorCheck("data directory", True, f"{data_dir} does not exist yet")
    if data_dir.stat().st_uid not in (os.geteuid(), 0):
        advice = f"Another user owns it: chown {data_dir}, or choose another with HEADRACE_EMBEDDED_DATA_DIR."
        return DoctorCheck("data directory", False, f"{data_dir} belongs to user {data_dir.stat().st_uid}", advice)
    return _check_modes("data directory", [data_dir])


def check_secret_files(data_dir: Path) -> DoctorCheck:
    files = [path for pattern in SECRET_FILES for path in sorted(data_dir.glob(pattern))]
    return _check_modes("secret files", files)


def _check_modes(check: str, paths: Sequence[Path]) -> DoctorCheck:
    open_paths = [path for path in paths if path.stat().st_mode & OTHERS_MODE_BITS]
    if not open_paths:
        found = ", ".join(f"{path.name} {_format_mode(path)}" for path in paths)
        return DoctorCheck(check, True, found or "none")
    found = ", ".join(f"{path} {_format_mode(path)}" for path in open_paths)
    return DoctorCheck(check, False, f"open to other users: {found}", f"chmod go= {' '.join(map(str, open_paths))}")


def _format_mode(path: Path) -> str:
    return f"{path.stat().st_mode & 0o7777:04o}"


def check_process_user(user_id: int) -> DoctorCheck:
    if user_id:
        return DoctorCheck("process user", True, f"user {user_id}")
    return DoctorCheck(
        "process user", True, "root", "Prefer a dedicated user: a compromised process then has only that user's rights."
    )


# Servers


def check_password(server: str, url: str) -> DoctorCheck:
    parts = urlsplit(url)
    parameters = dict(parse_qsl(parts.query))
    given = has_credential(url) if server == "postgres" else bool(parts.password or "password" in parameters)
    if given:
        return DoctorCheck(f"{server} password", True, "set")
    if is_local_socket(server, url):
        return DoctorCheck(f"{server} password", True, "none, over a Unix socket")
    advice = f"Set passwords for the server's users, and put one into {server}.url."
    return DoctorCheck(f"{server} password", False, "none in the URL", advice)


def check_encryption(server: str, url: str) -> DoctorCheck:
    check, hosts = f"{server} TLS", parse_hosts(server, url)
    encrypted = is_encrypted(url) if server == "postgres" else url.startswith(ENCRYPTED_SCHEMES)
    if encrypted:
        return DoctorCheck(check, True, "yes")
    if all(map(is_loopback, hosts)):
        return DoctorCheck(check, True, "no; the server is on this machine")
    how = {"redis": "rediss://", "postgres": "?sslmode=verify-full", "clickhouse": "https://"}[server]
    return DoctorCheck(check, False, f"no; the server is on {', '.join(hosts)}", f"Use {how} in {server}.url.")


def check_anonymous(server: str, url: str) -> DoctorCheck:
    """Check that the server refuses a client without credentials, by trying to connect."""
    check = f"{server} without credentials"
    if is_local_socket(server, url):
        return DoctorCheck(check, True, "not checked: a Unix socket is protected by file permissions")
    if (version := probe_version(server, strip_credentials(server, url))) is None:
        return DoctorCheck(check, True, "refused")
    advice = {
        "redis": "Disable the user that needs no password: ACL SETUSER default off (or set requirepass).",
        "postgres": "Replace `trust` in pg_hba.conf with scram-sha-256.",
        "clickhouse": "Set a password for the user `default`, or remove the user.",
    }
    return DoctorCheck(check, False, f"{version} responds", advice[server])


def check_valkey_user(_: str, url: str) -> DoctorCheck:
    user = urlsplit(url).username or "default"
    try:
        with translate_errors(), connect(url) as client:
            excess = find_excess_rights(client)
    except HeadraceError as error:
        return DoctorCheck("redis user", False, "unknown", str(error))
    if excess:
        return DoctorCheck("redis user", False, f"{user} may use {', '.join(excess)}", ACL_ADVICE)
    return DoctorCheck("redis user", True, f"{user}, not an administrator")


def check_postgres_role(_: str, url: str) -> DoctorCheck:
    try:
        rights = read_role_rights(url)
    except HeadraceError as error:
        return DoctorCheck("postgres role", False, "unknown", str(error))
    if rights.excess:
        return DoctorCheck("postgres role", False, f"{rights.role} has {', '.join(rights.excess)}", ROLE_ADVICE)
    return DoctorCheck("postgres role", True, f"{rights.role}, not an administrator")


ServerCheck = Callable[[str, str], DoctorCheck]
"""Checks a server, given its name in the settings and its URL."""

COMMON_SERVER_CHECKS: Mapping[str, ServerCheck] = {
    "password": check_password,
    "TLS": check_encryption,
    "without credentials": check_anonymous,
}
SERVER_CHECKS: Mapping[tuple[str, str], ServerCheck] = {
    **{(server, what): check for server in SERVERS for what, check in COMMON_SERVER_CHECKS.items()},
    ("redis", "user"): check_valkey_user,
    ("postgres", "role"): check_postgres_role,
}

CHECK_NAMES = (
    *(rule.key for rule in SETTING_RULES),
    *("settings file", "data directory", "secret files", "process user"),
    *(f"{server} {what}" for server, what in SERVER_CHECKS),
)
"""The names of all checks; each of them is listed in docs/how-to/security.md."""


def check_security(loaded: LoadedSettings) -> Iterator[DoctorCheck]:
    settings = loaded.settings
    data_dir = settings.embedded.data_dir.absolute()
    yield from (check_setting(rule, settings) for rule in SETTING_RULES)
    yield check_settings_file(loaded)
    yield check_data_directory(data_dir)
    yield check_secret_files(data_dir)
    yield check_process_user(os.geteuid())
    urls = vars(resolve_endpoints(settings))
    for (server, what), check in SERVER_CHECKS.items():
        if url := urls[server]:
            yield check(server, url)
        else:
            yield DoctorCheck(f"{server} {what}", True, "no server is configured")


# URLs


def parse_hosts(server: str, url: str) -> list[str]:
    if server == "postgres":
        return read_hosts(url)
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return []
    return [urlsplit(f"//{host}").hostname or "" for host in parts.netloc.rpartition("@")[2].split(",")]


def is_local_socket(server: str, url: str) -> bool:
    return all(host.startswith("/") for host in parse_hosts(server, url))


def strip_credentials(server: str, url: str) -> str:
    if server == "postgres":
        return remove_password(url)
    parts = urlsplit(url)
    kept = [(name, value) for name, value in parse_qsl(parts.query) if name not in CREDENTIAL_PARAMETERS]
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=urlencode(kept)))
