"""Connections, and the translation of their errors.

    redis://[user:password@]host:port/db      one server; rediss:// with TLS, unix:///path for a socket
    redis+cluster://host:port,host:port       a cluster, found through any of its nodes
    redis+sentinel://host:port,host:port/service/db   the master that the sentinels report

Replies stay bytes: payloads are not text, and names are decoded where they are read.
"""

from __future__ import annotations

from contextlib import ContextDecorator
from typing import Any, cast
from urllib.parse import SplitResult, unquote, urlsplit

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import (
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    ResponseError,
    TryAgainError,
)
from redis.retry import Retry

from headrace.errors import (
    DeadJobsFull,
    EnqueueRateExceeded,
    HeadraceError,
    MemoryFull,
    MoverFenced,
    NotPermitted,
    QueueClosed,
    QueueCold,
    QueueFull,
    QueueUnavailable,
    QuotaExceeded,
    SettingsNotRestored,
    WrongDatabase,
)

Valkey = redis.Redis
AsyncValkey = redis.asyncio.Redis
"""The client of a cluster has the same methods; only `find_node` treats it differently."""

ScriptError = ResponseError
"""Error of a script or command that no Headrace error describes."""


class ValkeyPermissionDenied(NotPermitted, ResponseError):
    """NotPermitted that is also a ResponseError, for code that handles errors of the server."""


TIMEOUT_S = 10.0
CLUSTER_RETRIES = 10
CLUSTER_BACKOFF = ExponentialWithJitterBackoff(base=0.01, cap=1.0)  # seconds; for the retries that redis-py makes
DEFAULT_PORT = 6379

SCRIPT_ERRORS: dict[str, type[HeadraceError]] = {
    "CLOSED": QueueClosed,
    "FULL": QueueFull,
    "DEADFULL": DeadJobsFull,
    "COLD": QueueCold,
    "FENCED": MoverFenced,
    "WRONGDB": WrongDatabase,
    "SETTINGS": SettingsNotRestored,
}
"""Error by the first word of a script's error reply."""

TEMPORARY_CODES = ("BUSY", "MISCONF", "NOREPLICAS", "SLOTMOVING", "UNBLOCKED")
TEMPORARY_ERRORS = (ClusterDownError, MasterDownError, ReadOnlyError, TryAgainError)
"""Errors of a server that changed nothing because of its current state; a retry may succeed."""


def connect(url: str, timeout_s: float = TIMEOUT_S, cluster_retries: int = CLUSTER_RETRIES) -> Valkey:
    """Return a client whose calls time out after `timeout_s`. On a cluster a call is then retried up to
    `cluster_retries` times, since another server may serve the slot by then. Raises QueueUnavailable for a cluster that
    is not responding."""
    parts, timeouts = urlsplit(url), _timeout_options(timeout_s)
    match _parse_kind(parts):
        case "cluster":
            nodes = [redis.cluster.ClusterNode(host, port) for host, port in _parse_hosts(parts)]
            retry = Retry(CLUSTER_BACKOFF, cluster_retries)
            with translate_errors():  # the constructor connects to the nodes
                client = redis.cluster.RedisCluster(
                    startup_nodes=nodes, retry=retry, **_parse_credentials(parts), **timeouts
                )
            return cast(Valkey, client)
        case "sentinel":
            service, options = _parse_sentinel(parts)
            return redis.sentinel.Sentinel(_parse_hosts(parts), **timeouts).master_for(service, **options, **timeouts)
        case _:
            return Valkey.from_url(url, **timeouts)


def connect_async(url: str, timeout_s: float = TIMEOUT_S) -> AsyncValkey:
    parts, timeouts = urlsplit(url), _timeout_options(timeout_s)
    match _parse_kind(parts):
        case "cluster":
            nodes = [redis.asyncio.cluster.ClusterNode(host, port) for host, port in _parse_hosts(parts)]
            client = redis.asyncio.cluster.RedisCluster(startup_nodes=nodes, **_parse_credentials(parts), **timeouts)
            return cast(AsyncValkey, client)
        case "sentinel":
            service, options = _parse_sentinel(parts)
            sentinel = redis.asyncio.sentinel.Sentinel(_parse_hosts(parts), **timeouts)
            return sentinel.master_for(service, **options, **timeouts)
        case _:
            return AsyncValkey.from_url(url, **timeouts)


def is_cluster(client: Valkey | AsyncValkey) -> bool:
    return isinstance(client, (redis.cluster.RedisCluster, redis.asyncio.cluster.RedisCluster))


def find_node(client: Valkey, key: str) -> Valkey:
    """Return the client of the server that holds a key, for commands that need one connection."""
    if isinstance(client, redis.cluster.RedisCluster):
        node = client.get_node_from_key(key)
        assert node is not None, "every key has a node in a cluster that answers"
        return client.get_redis_connection(node)
    return client


def read_server_time_ms(client: Valkey, key: str = "") -> int:
    """Return the clock of the server that holds a key, in ms."""
    with translate_errors():
        seconds, microseconds = find_node(client, key).time()
    return seconds * 1000 + microseconds // 1000


class ErrorTranslation(ContextDecorator):
    """Translates driver and server errors into Headrace errors; other server errors pass through."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is not None:
            _raise_translated(error)


_TRANSLATION = ErrorTranslation()


def translate_errors() -> ErrorTranslation:
    """Return a context, or decorator, that translates driver and server errors into Headrace errors."""
    return _TRANSLATION


def _raise_translated(error: BaseException) -> None:
    """Raise the Headrace error for a driver or server error. Return if there is none."""
    if isinstance(error, (redis.ConnectionError, redis.TimeoutError, RedisClusterException)):
        raise QueueUnavailable(f"{QueueUnavailable()} ({error})") from error
    if isinstance(error, OutOfMemoryError):
        raise MemoryFull from error
    if not isinstance(error, ResponseError) or isinstance(error, ValkeyPermissionDenied):
        return  # the latter was translated by a nested block
    if isinstance(error, NoPermissionError) or "ACL failure in script" in str(error):
        raise ValkeyPermissionDenied(f"{NotPermitted()} ({error})") from error
    word = str(error).partition(" ")[0]
    if word in ("QUOTA", "RATE"):
        raise _parse_quota_refusal(str(error).split()) from error
    if kind := SCRIPT_ERRORS.get(word):
        raise kind from error
    if word in TEMPORARY_CODES or isinstance(error, TEMPORARY_ERRORS):
        raise QueueUnavailable(f"Valkey refused the command and changed nothing: {error}. Retry later.") from error


_WHERE = {"environment": "the environment", "share": "the project or organisation, in the environment's share of it,"}


def _parse_quota_refusal(words: list[str]) -> QuotaExceeded:
    """Parse the words of a QUOTA or RATE error of lua/enqueue.lua."""
    if words[0] == "QUOTA":
        _, name, kind, limit, used = words
        return QuotaExceeded(name, _WHERE[kind], int(limit), int(used))
    _, kind, rate, burst, jobs, wait_ms = words
    largest = int(jobs) if kind == "environment" else 0  # a share may grow
    return EnqueueRateExceeded(_WHERE[kind], float(rate), float(burst), largest, int(wait_ms) / 1000)


def _timeout_options(seconds: float) -> dict[str, Any]:
    return {"socket_timeout": seconds, "socket_connect_timeout": seconds}


def _parse_kind(parts: SplitResult) -> str:
    return parts.scheme.partition("+")[2]


def find_address(url: str) -> tuple[str, int | None]:
    """Return the host and port of a server, or the path of its socket and None. Of several servers, the first."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return parts.path, None
    return _parse_hosts(parts)[0]


def _parse_hosts(parts: SplitResult) -> list[tuple[str, int]]:
    """Return the hosts and ports of a URL, of which there may be several; urlsplit parses only one."""
    hosts = [urlsplit(f"//{host}") for host in parts.netloc.rpartition("@")[2].split(",")]
    return [(host.hostname or "127.0.0.1", host.port or DEFAULT_PORT) for host in hosts]


def _parse_credentials(parts: SplitResult) -> dict[str, Any]:
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    tls = {"ssl": True} if parts.scheme.startswith("rediss") else {}
    return {"username": unquote(user) or None, "password": unquote(password) or None, **tls}


def _parse_sentinel(parts: SplitResult) -> tuple[str, dict[str, Any]]:
    service, _, database = parts.path.strip("/").partition("/")
    return unquote(service) or "mymaster", {**_parse_credentials(parts), "db": int(database or 0)}
