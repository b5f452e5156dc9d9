"""`headrace doctor --security`: each check fails where the corresponding attack succeeds."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, LiteralString

import pytest
from click.testing import CliRunner

from headrace.cli import main
from headrace.cli.doctor_security import (
    CHECK_NAMES,
    SETTING_RULES,
    check_anonymous,
    check_data_directory,
    check_encryption,
    check_password,
    check_postgres_role,
    check_process_user,
    check_secret_files,
    check_security,
    check_setting,
    check_settings_file,
    check_valkey_user,
    is_loopback,
    parse_hosts,
    strip_credentials,
)
from headrace.cli.valkey_roles import build_roles
from headrace.postgres.connect import connect as connect_postgres
from headrace.settings import Settings, load_settings
from headrace.valkey.connect import connect
from tests.conftest import READY_S, QuickPostgres, Servers
from tests.security.acl_server import AclValkey

DANGEROUS_HOSTS = {
    "127.0.0.1": "loopback",
    "::1": "loopback",
    "::ffff:7f00:1": "loopback",
    "localhost": "loopback",
    "169.254.169.254": "cloud metadata",
    "fd00:ec2::254": "cloud metadata",
    "metadata.google.internal": "cloud metadata",
    "169.254.1.1": "a link-local, multicast or unspecified address",
    "0.0.0.0": "a link-local, multicast or unspecified address",
    "10.0.0.0/8": "a whole private network",
    "0.0.0.0/0": "a whole private network",
    "::/0": "a whole private network",
}

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "security.md").read_text("utf-8")


@pytest.fixture
def server(acl_server: AclValkey) -> AclValkey:
    return acl_server


def test_the_checklist_has_every_check() -> None:
    section = PAGE.partition("## Hardening checklist")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    documented = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert sorted(documented) == sorted(CHECK_NAMES)


class TestSettings:
    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("api.host", "0.0.0.0"),
            ("api.host", "10.1.2.3"),
            ("api.host", "::"),
            ("metrics.host", "0.0.0.0"),
            ("alerts.allow_private", "true"),
            ("autoscale.allow_private", "true"),
            *((f"{part}.allowed_hosts", host) for part in ("alerts", "autoscale") for host in DANGEROUS_HOSTS),
        ],
    )
    def test_open_settings_fail(self, key: str, value: str) -> None:
        [rule] = [rule for rule in SETTING_RULES if rule.key == key]
        assert check_setting(rule, Settings()).ok
        finding = check_setting(rule, load_settings({key: value}, {}, None).settings)
        assert not finding.ok
        assert finding.advice

    @pytest.mark.parametrize(("host", "opened"), DANGEROUS_HOSTS.items())
    def test_what_an_allowed_host_opens_is_named(self, host: str, opened: str) -> None:
        [rule] = [rule for rule in SETTING_RULES if rule.key == "alerts.allowed_hosts"]
        settings = load_settings({rule.key: f"hooks.internal,{host},10.1.0.0/16"}, {}, None).settings
        assert check_setting(rule, settings).found == f"allows {host} ({opened})"

    def test_hosts_and_networks_of_ones_own_may_be_allowed(self) -> None:
        hosts = "10.1.0.0/16, hooks.internal, 192.168.7.7, fd12::/16, 127.0.0.0/8"
        for rule in SETTING_RULES:
            if rule.key.endswith("allowed_hosts"):
                finding = check_setting(rule, load_settings({rule.key: hosts}, {}, None).settings)
                assert (finding.ok, finding.found) == (True, f"allows {hosts}")

    @pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "/run/postgresql"])
    def test_this_machine(self, host: str) -> None:
        assert is_loopback(host)

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "localhost.example", "127.0.0.1.example", "192.168.0.1", "db"])
    def test_other_machines(self, host: str) -> None:
        assert not is_loopback(host)


class TestFiles:
    def test_settings_file_with_a_password_that_others_can_read(self, tmp_path: Path) -> None:
        file = tmp_path / "headrace.toml"
        file.write_text('[redis]\nurl = "redis://me:secret@valkey.example/0"\n')
        file.chmod(0o640)
        finding = check_settings_file(load_settings({}, {}, file))
        assert not finding.ok
        assert "0640" in finding.found
        assert "secret" not in finding.found
        file.chmod(0o600)
        assert check_settings_file(load_settings({}, {}, file)).ok

    def test_settings_file_without_secrets_may_be_read(self, tmp_path: Path) -> None:
        file = tmp_path / "headrace.toml"
        file.write_text("[api]\nport = 8080\n")
        file.chmod(0o644)
        assert check_settings_file(load_settings({}, {}, file)).ok

    def test_data_directory_that_others_can_enter(self, tmp_path: Path) -> None:
        assert check_data_directory(tmp_path / "not there").ok
        tmp_path.chmod(0o755)
        assert not check_data_directory(tmp_path).ok
        tmp_path.chmod(0o700)
        assert check_data_directory(tmp_path).ok

    def test_key_that_others_can_read(self, tmp_path: Path) -> None:
        key = tmp_path / "api.key"
        key.write_text("hr_…")
        key.chmod(0o644)
        assert not check_secret_files(tmp_path).ok
        key.chmod(0o600)
        assert check_secret_files(tmp_path).ok

    def test_root_is_advised_against(self) -> None:
        assert check_process_user(0).advice
        assert not check_process_user(1000).advice


class TestUrls:
    @pytest.mark.parametrize(
        ("server", "url", "password", "encrypted"),
        [
            ("redis", "redis://valkey.example:6379/0", False, False),
            ("redis", "rediss://me:secret@valkey.example:6379/0", True, True),
            ("redis", "redis://valkey.example/0?password=secret", True, False),
            ("redis", "redis+cluster://:secret@127.0.0.1:1,valkey.example:2", True, False),
            ("redis", "rediss+cluster://:secret@a:1,b:2", True, True),
            ("redis", "unix:///run/valkey.sock", True, True),
            ("redis", "redis://:secret@127.0.0.1:6379/0", True, True),
            ("postgres", "postgresql://me@db.example/headrace", False, False),
            ("postgres", "postgresql://me:secret@db.example/headrace?sslmode=prefer", True, False),
            ("postgres", "postgresql://me:secret@db.example/headrace?sslmode=verify-full", True, True),
            ("postgres", "postgresql://me@/headrace?host=/run/postgresql", True, True),
            ("postgres", "postgresql://me:secret@[::1]/headrace", True, True),
            ("clickhouse", "http://clickhouse.example:8123", False, False),
            ("clickhouse", "https://me:secret@clickhouse.example:8443", True, True),
            ("clickhouse", "clickhouses://me:secret@clickhouse.example", True, True),
        ],
    )
    def test_passwords_and_encryption(self, server: str, url: str, password: bool, encrypted: bool) -> None:
        """Encryption is needed for other machines only."""
        assert check_password(server, url).ok is password
        assert check_encryption(server, url).ok is encrypted
        assert "secret" not in f"{check_password(server, url)} {check_encryption(server, url)}"

    def test_no_credential_is_left(self) -> None:
        assert strip_credentials("redis", "redis://me:p%40@h:1/0?password=p&protocol=3") == "redis://h:1/0?protocol=3"
        assert strip_credentials("clickhouse", "https://me:p@h:8443/?user=me&password=p") == "https://h:8443/"
        assert "p@ss" not in strip_credentials("postgres", "postgresql://me:p%40ss@h/db")

    def test_every_host_is_looked_at(self) -> None:
        assert parse_hosts("redis", "redis+cluster://:p@127.0.0.1:1,h:2,[::1]:3") == ["127.0.0.1", "h", "::1"]
        assert parse_hosts("postgres", "postgresql://a:1,b:2/db") == ["a", "b"]


class TestValkey:
    def test_an_administrator_is_no_user_for_headrace(self, server: AclValkey) -> None:
        finding = check_valkey_user("redis", server.url)
        assert not finding.ok
        assert finding.found == "default may use ACL, CONFIG, MODULE, keys of other applications"

    @pytest.mark.parametrize("role", build_roles())
    def test_every_role_passes(self, server: AclValkey, role: str) -> None:
        url = server.create_user(build_roles()[role])
        assert check_valkey_user("redis", url).ok

    def test_an_open_default_user(self, server: AclValkey) -> None:
        url = server.create_user(build_roles()["worker"])
        assert check_anonymous("redis", url).ok
        with connect(server.url) as admin:
            admin.execute_command("ACL", "SETUSER", "default", "nopass")
            try:
                assert not check_anonymous("redis", url).ok
            finally:
                admin.execute_command("ACL", "LOAD")
        assert check_anonymous("redis", url).ok

    def test_an_unavailable_server_is_not_reported_as_safe(self) -> None:
        assert not check_valkey_user("redis", "redis://:p@127.0.0.1:1/0").ok
        assert not check_postgres_role("postgres", "postgresql://me:p@127.0.0.1:1/db").ok


class AdminPostgres(QuickPostgres):
    """A server whose role may change other roles."""

    name = "postgres-admin"
    role_options = "SUPERUSER"


@pytest.fixture
def admin_url(servers: Servers) -> Iterator[str]:
    server = AdminPostgres(servers.folder / AdminPostgres.name, servers.folder / "log")
    server.start()
    try:
        server.wait_ready(READY_S)
        yield server.url
    finally:
        server.stop()


RIGHTS: Mapping[LiteralString, str] = {
    "ALTER ROLE guest SUPERUSER": "guest has SUPERUSER",
    "ALTER ROLE guest NOSUPERUSER CREATEROLE": "guest has CREATEROLE",
    "ALTER ROLE guest NOCREATEROLE CREATEDB BYPASSRLS": "guest has CREATEDB, BYPASSRLS",
    "ALTER ROLE guest NOCREATEDB NOBYPASSRLS": "guest, not an administrator",
    "GRANT pg_execute_server_program TO guest": "guest has pg_execute_server_program",
}
"""Changes of a role, one after another → what is found then."""


def test_rights_of_a_postgres_role(admin_url: str) -> None:
    assert not check_postgres_role("postgres", admin_url).ok
    url = re.sub("//.*@", "//guest:guest@", admin_url)
    with connect_postgres(admin_url) as conn:
        conn.execute("CREATE ROLE guest LOGIN PASSWORD 'guest'")
    assert check_postgres_role("postgres", url).ok
    for change, found in RIGHTS.items():
        with connect_postgres(admin_url) as conn:
            conn.execute(change)
        assert check_postgres_role("postgres", url).found == found


def run_doctor(*arguments: str, **environ: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(main.headrace, ["doctor", "--security", "--json", *arguments], env=environ)
    return result.exit_code, json.loads(result.stdout)


def test_the_command(server: AclValkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o700)
    environ = {
        "HEADRACE_EMBEDDED_DATA_DIR": str(tmp_path),
        "HEADRACE_REDIS_URL": server.create_user(build_roles()["worker"]),
    }
    code, found = run_doctor(**environ)
    assert [check for check in found["checks"] if not check["ok"]] == []
    assert code == 0
    assert [check["check"] for check in found["checks"]] == list(CHECK_NAMES)
    code, found = run_doctor(**{**environ, "HEADRACE_REDIS_URL": server.url})
    assert [check["check"] for check in found["checks"] if not check["ok"]] == ["redis user"]
    assert code == 1


def test_nothing_is_found_where_nothing_is_configured(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o700)
    loaded = load_settings({"embedded.data_dir": str(tmp_path)}, {}, None)
    assert [finding for finding in check_security(loaded) if not finding.ok] == []
