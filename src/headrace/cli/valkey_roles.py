"""Valkey roles: the commands and keys that each part of Headrace needs, and no others.

A script runs with the permissions of the user who calls it, so a role includes every command that its scripts call;
the commands are read from the scripts. Roles differ mainly in their keys: a user who may call scripts can send other
scripts, with any of the role's commands on any of its keys. docs/how-to/security.md describes the consequences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headrace.queue import keys
from headrace.queue import scripts as queue_scripts
from headrace.snapshot import store as snapshot_scripts
from headrace.streams import scripts as stream_scripts
from headrace.valkey import lease
from headrace.valkey.lua_source import find_commands
from headrace.valkey.scripts import Script

SNAPSHOT_PREFIX = snapshot_scripts.SnapshotStoreOptions().prefix

CONNECTION_COMMANDS = frozenset(
    {"ping", "select", "client|setinfo", "client|setname", "command", "cluster|slots", "asking"}
)
"""Commands that redis-py sends on its own, including those for a cluster."""

SCRIPT_COMMANDS = frozenset({"eval", "evalsha"})

READ_COMMANDS = frozenset(
    {
        "exists",
        "get",
        "hget",
        "hgetall",
        "hmget",
        "info",
        "lrange",
        "multi",
        "exec",
        "scard",
        "smembers",
        "time",
        "type",
    }
    | {"xinfo|groups", "xlen", "xrange", "xrevrange", "zcard", "zcount", "zrange", "zrangebyscore", "zrevrange"}
    | {"zrevrangebyscore", "zscore"}
)
"""Commands that read data outside of scripts."""


@dataclass(frozen=True)
class ProducerScope:
    """Tenants whose jobs a producer may enqueue: all (None), or one organisation, project or environment."""

    org: str | None = None
    project: str | None = None
    env: str | None = None

    def build_patterns(self) -> tuple[str, str]:
        """Return two patterns for the environment in a key: where it ends the key, and where more parts follow."""
        names = [name for name in (self.org, self.project, self.env) if name is not None]
        encoded = ":".join(escape_pattern(keys.encode(name)) for name in names)
        within = f"{encoded}:*" if names else "*"
        return (encoded if len(names) == 3 else within), within


@dataclass(frozen=True)
class ValkeyRole:
    """Permissions of one part of Headrace."""

    name: str
    purpose: str
    scripts: Sequence[Script]
    commands: frozenset[str]  # in addition to those of its scripts
    patterns: Sequence[str]  # key patterns, in the syntax of ACL rules

    def list_commands(self) -> list[str]:
        called = (find_commands(text) for script in self.scripts for text in (script.source, script.cluster_source))
        return sorted(CONNECTION_COMMANDS | self.commands | SCRIPT_COMMANDS.union(*called))

    def build_rules(self) -> list[str]:
        """Return the ACL rules of the role, to be applied after `reset`."""
        return ["resetchannels", *self.patterns, "-@all", *(f"+{command}" for command in self.list_commands())]


def _load(script: Callable[[str], Script], *names: str) -> list[Script]:
    return [script(name) for name in names]


MAINTENANCE_SCRIPTS = ("maintain", "repair")
MOVER_SCRIPTS = (
    "elect",
    "read_refill_state",
    "refill",
    "sync_cold",
    "leave_cold",
    "list_dead",
    "drop_dead",
    "settle_ids",
    "sync_settings_state",
    "restore_setting",
    "share",
    "configure",
    *MAINTENANCE_SCRIPTS,
)
MOVER_COMMANDS = READ_COMMANDS | {
    "bzpopmin",
    "zpopmin",
    "hset",
    "hsetnx",
    "hdel",
    "hincrby",
    "hscan",
    "set",
    "del",
    "wait",
    "waitaof",
}


def build_producer_role(scope: ProducerScope | None = None) -> ValkeyRole:
    alone, within = (scope or ProducerScope()).build_patterns()
    shared = (
        "meta",
        "envs",
        "environments",
        "queues",
        "class:*",
        "wake",
        "wake:*",
        "due",
        "scheduled",
        "expiries",
        "cold",
        "hungry",
        "repair",
        "asking",
    )
    return ValkeyRole(
        "producer",
        "Enqueues jobs, and reads records of their attempts. Reads no payloads.",
        _load(queue_scripts.script, "enqueue", "reserve_ids", "settle_ids", "sync_cold", "read_attempts"),
        frozenset({"get", "hget", "hsetnx"}),
        [
            *("%R~hr:shards", "%R~hr:{*}:absent", "%W~hr:{*}:metrics", "%R~hr:{*}:metrics:enabled"),
            *(f"~hr:{{*}}:{key}" for key in shared),
            *dict.fromkeys((f"~hr:{{*}}:env:{alone}", f"~hr:{{*}}:env:{within}")),
            *(f"~hr:{{*}}:q:{within}", f"~hr:{{*}}:job:{within}", f"%W~hr:{{*}}:body:{within}"),
            f"%R~hr:{{*}}:attempts:{within}",
        ],
    )


def build_worker_role() -> ValkeyRole:
    running = ("dequeue", "begin", "extend", "ack", "nack", "bury", "requeue", "defer")
    return ValkeyRole(
        "worker",
        "Runs jobs of all tenants, maintains shards, moves jobs between Valkey and PostgreSQL.",
        _load(queue_scripts.script, *running, *MOVER_SCRIPTS),
        MOVER_COMMANDS | {"zadd", "zrem"},
        ["~hr:shards", "%R~hr:metrics:enabled", "~hr:{*}:*", "~hr:workers", "~hr:worker:*", "~hr:plugins"],
    )


def build_mover_role() -> ValkeyRole:
    return ValkeyRole(
        "mover",
        "Moves jobs between Valkey and PostgreSQL, maintains shards.",
        _load(queue_scripts.script, *MOVER_SCRIPTS),
        MOVER_COMMANDS,
        ["~hr:shards", "%R~hr:metrics:enabled", "~hr:{*}:*"],
    )


def build_pipeline_role() -> ValkeyRole:
    return ValkeyRole(
        "pipeline",
        "Reads and trims metric events. Has no access to jobs.",
        [
            *_load(queue_scripts.script, "resync"),
            *_load(lease.script, "acquire_lease", "release_lease", "record_holder", "save_status"),
        ],
        frozenset({"exists", "xrange", "xrevrange", "xtrim", "xinfo|groups", "xgroup|create", "xgroup|setid", "hget"}),
        [
            *("%R~hr:shards", "~hr:pipeline:lease", "~hr:pipeline:last", "~hr:pipeline:status"),
            *("~hr:{*}:meta", "~hr:{*}:metrics", "%R~hr:{*}:metrics:enabled"),
            *("%R~hr:{*}:absent", "%R~hr:{*}:queues", "%R~hr:{*}:env:*", "%R~hr:{*}:q:*"),
        ],
    )


def build_reader_role(snapshot_prefix: str = SNAPSHOT_PREFIX) -> ValkeyRole:
    names = ("meta", "metrics", "metrics:enabled", "envs", "environments", "queues", "class:*", "env:*", "q:*", "cold")
    more = ("hungry", "buried", "losses", "leases", "scheduled", "expiries", "attempt_expiries")
    maintained = ("repair", "quarantine", "missing", "mover", "memory")
    streams = ("stream:*", "streams", "streams:*", "seen", "seen:*")
    shared = (
        "shards",
        "metrics:enabled",
        "workers",
        "worker:*",
        "plugins",
        "pipeline:lease",
        "pipeline:last",
        "pipeline:status",
    )
    return ValkeyRole(
        "reader",
        "Reads counts and states of queues, workers and snapshots. Reads no payloads, changes nothing.",
        _load(snapshot_scripts.script, "read_status"),
        READ_COMMANDS,
        [
            *(f"%R~hr:{key}" for key in shared),
            *(f"%R~hr:{{*}}:{key}" for key in (*names, *more, *maintained, *streams)),
            # The keys of a script must be writable, even if it only reads them.
            f"~{{{escape_pattern(snapshot_prefix)}}}:*",
        ],
    )


def build_api_role(snapshot_prefix: str = SNAPSHOT_PREFIX) -> ValkeyRole:
    return ValkeyRole(
        "api",
        "Serves the API, alerts, snapshots, the autoscaler and operator commands.",
        [
            *_load(queue_scripts.script, *queue_scripts.SCRIPTS),
            *_load(snapshot_scripts.script, *snapshot_scripts.SCRIPTS),
            *_load(lease.script, "renew_lease", "release_lease", "add_sample"),
            *_load(stream_scripts.script, "emit_events", "save_report"),
        ],
        MOVER_COMMANDS | {"getrange", "zrem"},
        ["~hr:*", f"~{{{escape_pattern(snapshot_prefix)}}}:*"],
    )


def build_roles(snapshot_prefix: str = SNAPSHOT_PREFIX, scope: ProducerScope | None = None) -> dict[str, ValkeyRole]:
    roles = (
        build_producer_role(scope),
        build_worker_role(),
        build_mover_role(),
        build_pipeline_role(),
        build_reader_role(snapshot_prefix),
        build_api_role(snapshot_prefix),
    )
    return {role.name: role for role in roles}


def escape_pattern(text: str) -> str:
    """Return a pattern that matches a part of a key. ACL rules cannot contain spaces, so `?` replaces them."""
    return re.sub(r"\s", "?", re.sub(r"([*?\[\]\\])", r"\\\1", text))


def build_acl_words(role: ValkeyRole, user: str, password_hash: str | None) -> list[str]:
    """Return the arguments of `ACL SETUSER`. Without the SHA-256 of a password, the user cannot sign in."""
    entry = ["off"] if password_hash is None else ["on", f"#{password_hash}"]
    return [user, "reset", *entry, *role.build_rules()]


def format_command(words: Iterable[str]) -> str:
    """Return an `ACL SETUSER` command in the syntax of valkey-cli."""
    escaped = (re.sub(r'(["\\\\])', r"\\\1", word) for word in words)
    return " ".join(["ACL SETUSER", *(f'"{word}"' if re.search(r"[\\\"']", word) else word for word in escaped)])


def format_file_line(words: Iterable[str]) -> str:
    """Return a line for Valkey's ACL file, which has no quotes."""
    return " ".join(["user", *words])
