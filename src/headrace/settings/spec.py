"""All sections, and the declaration of every setting by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeVar, cast

from headrace.kinds import ValueKind
from headrace.settings.alerts import AlertsSettings
from headrace.settings.api import ApiSettings
from headrace.settings.autoscale import AutoscaleSettings
from headrace.settings.log import LogSettings
from headrace.settings.metrics import MetricsSettings
from headrace.settings.pipeline import ArchiveSettings, PipelineSettings, WarehouseSettings
from headrace.settings.queue import ColdSettings, JobQueueSettings, QuotasSettings, WorkerSettings
from headrace.settings.remote_write import RemoteWriteSettings
from headrace.settings.secrets import mask_secret
from headrace.settings.servers import ClickHouseSettings, EmbeddedSettings, PostgresSettings, RedisSettings
from headrace.settings.spool import SpoolSettings
from headrace.settings.streams import StreamsSettings

T = TypeVar("T")

ENV_PREFIX = "HEADRACE_"


@dataclass(frozen=True)
class Settings:
    redis: RedisSettings = field(default_factory=RedisSettings)
    postgres: PostgresSettings = field(default_factory=PostgresSettings)
    clickhouse: ClickHouseSettings = field(default_factory=ClickHouseSettings)
    embedded: EmbeddedSettings = field(default_factory=EmbeddedSettings)
    api: ApiSettings = field(default_factory=ApiSettings)
    queue: JobQueueSettings = field(default_factory=JobQueueSettings)
    quotas: QuotasSettings = field(default_factory=QuotasSettings)
    cold: ColdSettings = field(default_factory=ColdSettings)
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)
    archive: ArchiveSettings = field(default_factory=ArchiveSettings)
    warehouse: WarehouseSettings = field(default_factory=WarehouseSettings)
    spool: SpoolSettings = field(default_factory=SpoolSettings)
    remote_write: RemoteWriteSettings = field(default_factory=RemoteWriteSettings)
    alerts: AlertsSettings = field(default_factory=AlertsSettings)
    autoscale: AutoscaleSettings = field(default_factory=AutoscaleSettings)
    streams: StreamsSettings = field(default_factory=StreamsSettings)
    log: LogSettings = field(default_factory=LogSettings)


@dataclass(frozen=True)
class SettingSpec:
    """Declaration of one setting, used by the reference page and `config show`."""

    section: str
    name: str
    default: object
    help: str
    kind: ValueKind[Any]
    secret: bool

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def env(self) -> str:
        return f"{ENV_PREFIX}{self.section}_{self.name}".replace(".", "_").upper()

    def format(self, value: object) -> str:
        """Format a value as it is written in a settings file, with a secret masked; empty text for None."""
        shown = self.kind.format(value)
        return mask_secret(shown) if self.secret and shown else shown

    def get_value(self, settings: Settings) -> object:
        return attrgetter(self.key)(settings)


def _iter_specs(container: type[Any], prefix: str = "") -> Iterator[SettingSpec]:
    """Yield the settings of all sections, including nested ones, whose keys have one more part."""
    for section in _sections(container):
        kind, name = cast("type[Any]", section.default_factory), prefix + section.name
        for item in fields(kind):
            if item.metadata:
                yield SettingSpec(name, item.name, item.default, **item.metadata)
        yield from _iter_specs(kind, f"{name}.")


def _sections(container: type[Any]) -> list[Field[Any]]:
    return [each for each in fields(container) if not each.metadata]


SETTINGS: Mapping[str, SettingSpec] = {each.key: each for each in _iter_specs(Settings)}
"""All settings by key, in the order of the reference page."""

KEY_BY_ENV = {each.env: each.key for each in SETTINGS.values()}
SECTIONS = frozenset(each.section for each in SETTINGS.values())


def build_section(container: type[T], values: Mapping[str, object], prefix: str = "") -> T:
    """Build a section and the sections within it from values by key; values that are not given are defaults."""
    given = {
        each.name: values[prefix + each.name] for each in fields(cast(Any, container)) if prefix + each.name in values
    }
    sections = {
        each.name: build_section(cast("type[Any]", each.default_factory), values, f"{prefix}{each.name}.")
        for each in _sections(container)
    }
    return container(**given, **sections)
