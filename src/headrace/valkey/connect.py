"""Connections, and what their failures mean.

    redis://[user:password@]host:port/db      one server; rediss:// with TLS, unix:///path for a socket
    redis+cluster://host:port,host:port       a cluster, found through any of its nodes
    redis+sentinel://host:port,host:port/service/db   the master that the sentinels know

Answers stay bytes: payloads are not text, and names are decoded where they are read.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
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
"""A cluster's client has the same methods; only `node_of` needs to know the difference."""

ScriptError = ResponseError
"""A script failed in a way that none of the errors below describes."""


class Denied(NotPermitted, ResponseError):
    """NotPermitted, also for code that handles what a server refuses."""


TIMEOUT_S = 10.0
CLUSTER_RETRIES = 10
CLUSTER_BACKOFF = ExponentialWithJitterBackoff(base=0.01, cap=1.0)  # seconds between retries; redis-py's own
DEFAULT_PORT = 6379

REFUSALS: dict[str, type[HeadraceError]] = {
    "CLOSED": QueueClosed,
    "FULL": QueueFull,
    "DEADFULL": DeadJobsFull,
    "COLD": QueueCold,
    "FENCED": MoverFenced,
    "WRONGDB": WrongDatabase,
    "SETTINGS": SettingsNotRestored,
}
"""What our scripts refuse, by the first word of their answer."""

FOR_NOW = ("BUSY", "MISCONF", "NOREPLICAS", "SLOTMOVING")
FOR_NOW_ERRORS = (ClusterDownError, MasterDownError, ReadOnlyError, TryAgainError)
"""What a server refuses because of the state it is in: it has done nothing, and may do it later."""


def connect(url: str, timeout_s: float = TIMEOUT_S, cluster_retries: int = CLUSTER_RETRIES) -> Valkey:
    """Return a client whose calls wait for a server for `timeout_s`. On a cluster they are then repeated up to
    `cluster_retries` times, since another server may hold the slot by then."""
    parts, timeouts = urlsplit(url), _timeouts(timeout_s)
    match _kind(parts):
        case "cluster":
            nodes = [redis.cluster.ClusterNode(host, port) for host, port in _hosts(parts)]
            retry = Retry(CLUSTER_BACKOFF, cluster_retries)
            with available():  # it asks the nodes at once
                client = redis.cluster.RedisCluster(startup_nodes=nodes, retry=retry, **_credentials(parts), **timeouts)
            return cast(Valkey, client)
        case "sentinel":
            service, options = _sentinel(parts)
            return redis.sentinel.Sentinel(_hosts(parts), **timeouts).master_for(service, **options, **timeouts)
        case _:
            return Valkey.from_url(url, **timeouts)


def connect_async(url: str, timeout_s: float = TIMEOUT_S) -> AsyncValkey:
    parts, timeouts = urlsplit(url), _timeouts(timeout_s)
    match _kind(parts):
        case "cluster":
            nodes = [redis.asyncio.cluster.ClusterNode(host, port) for host, port in _hosts(parts)]
            client = redis.asyncio.cluster.RedisCluster(startup_nodes=nodes, **_credentials(parts), **timeouts)
            return cast(AsyncValkey, client)
        case "sentinel":
            service, options = _sentinel(parts)
            sentinel = redis.asyncio.sentinel.Sentinel(_hosts(parts), **timeouts)
            return sentinel.master_for(service, **options, **timeouts)
        case _:
            return AsyncValkey.from_url(url, **timeouts)


def is_cluster(client: Valkey | AsyncValkey) -> bool:
    return isinstance(client, (redis.cluster.RedisCluster, redis.asyncio.cluster.RedisCluster))


def node_of(client: Valkey, key: str) -> Valkey:
    """The server that holds a key, for commands that need one connection."""
    if isinstance(client, redis.cluster.RedisCluster):
        node = client.get_node_from_key(key)
        assert node is not None, "every key has a node in a cluster that answers"
        return client.get_redis_connection(node)
    return client


@contextmanager
def available() -> Generator[None]:
    """What the server could not do becomes an error of ours; other errors that it reports pass."""
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError, RedisClusterException) as error:
        raise QueueUnavailable(f"{QueueUnavailable.__doc__} ({error})") from error
    except OutOfMemoryError as error:
        raise MemoryFull from error
    except ResponseError as error:
        if isinstance(error, Denied):
            raise  # from within
        if _is_denied(error):
            raise Denied(f"{NotPermitted()} ({error})") from error
        word = str(error).partition(" ")[0]
        if word in ("QUOTA", "RATE"):
            raise _quota_exceeded(str(error).split()) from error
        if ours := REFUSALS.get(word):
            raise ours from error
        if word in FOR_NOW or isinstance(error, FOR_NOW_ERRORS):
            raise QueueUnavailable(f"Valkey cannot do this now, and has changed nothing: {error}") from error
        raise


_WHERE = {"environment": "the environment", "share": "the project or organisation, in the environment's share of it,"}


def _quota_exceeded(words: list[str]) -> QuotaExceeded:
    """Read a refusal of lua/enqueue.lua."""
    if words[0] == "QUOTA":
        _, name, kind, limit, used = words
        return QuotaExceeded(name, _WHERE[kind], int(limit), int(used))
    _, kind, rate, burst, jobs, wait_ms = words
    largest = int(jobs) if kind == "environment" else 0  # a share may grow
    return EnqueueRateExceeded(_WHERE[kind], float(rate), float(burst), largest, int(wait_ms) / 1000)


def _is_denied(error: ResponseError) -> bool:
    """Return whether the user lacks the right to a command or key, also to one within a script."""
    return isinstance(error, NoPermissionError) or "ACL failure in script" in str(error)


def _timeouts(seconds: float) -> dict[str, Any]:
    return {"socket_timeout": seconds, "socket_connect_timeout": seconds}


def _kind(parts: SplitResult) -> str:
    return parts.scheme.partition("+")[2]


def _hosts(parts: SplitResult) -> list[tuple[str, int]]:
    """urlsplit knows one host; here there may be several."""
    found = [urlsplit(f"//{host}") for host in parts.netloc.rpartition("@")[2].split(",")]
    return [(host.hostname or "127.0.0.1", host.port or DEFAULT_PORT) for host in found]


def _credentials(parts: SplitResult) -> dict[str, Any]:
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    tls = {"ssl": True} if parts.scheme.startswith("rediss") else {}
    return {"username": unquote(user) or None, "password": unquote(password) or None, **tls}


def _sentinel(parts: SplitResult) -> tuple[str, dict[str, Any]]:
    service, _, database = parts.path.strip("/").partition("/")
    return unquote(service) or "mymaster", {**_credentials(parts), "db": int(database or 0)}
