"""Loads settings from the TOML file, the environment and flags, and checks them."""

from __future__ import annotations

import operator
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from headrace.errors import SettingsError
from headrace.settings.secrets import hide_secret
from headrace.settings.spec import ENV_PREFIX, KEY_BY_ENV, SECTIONS, SETTINGS, Settings, SettingSpec, build_section

CONFIG_ENV = "HEADRACE_CONFIG"
CONTEXT_ENV = "HEADRACE_CONTEXT"  # the environment that commands use, see headrace.cli.context
NOT_SETTINGS = (CONFIG_ENV, CONTEXT_ENV)
FILE_NAME = "headrace.toml"

RENAMED = {"spool.max_concurrent_sends": "spool.max_sends"}
"""Earlier names of settings, which are still read."""
_RENAMED_VARIABLES = {f"{ENV_PREFIX}{old}".replace(".", "_").upper(): SETTINGS[new].env for old, new in RENAMED.items()}

CONSTRAINTS = (
    ("worker.heartbeat", "must be shorter than", "queue.lease"),
    ("queue.retry_base", "must not be longer than", "queue.retry_max"),
    ("alerts.retry_interval", "must not be longer than", "alerts.max_retry_delay"),
    ("metrics.queue_snapshot.refresh_interval", "must be shorter than", "metrics.queue_snapshot.max_staleness"),
    ("autoscale.every", "must be shorter than", "autoscale.fresh"),
    ("autoscale.every", "must not be longer than", "autoscale.window"),
    ("worker.heartbeat", "must be shorter than", "streams.lease"),
    ("streams.maxlen", "must not be more than", "streams.hard_maxlen"),
    ("spool.retry_interval", "must not be longer than", "spool.max_retry_delay"),
    ("spool.clickhouse_retry_interval", "must not be longer than", "spool.clickhouse_max_retry_delay"),
)
_IS_SATISFIED: Mapping[str, Callable[[Any, Any], bool]] = {
    "must be shorter than": operator.lt,
    "must not be longer than": operator.le,
    "must not be more than": operator.le,
}


@dataclass(frozen=True)
class SettingOrigin:
    """Source of a value: `default`, `file headrace.toml`, `environment HEADRACE_X` or `flag --set x`."""

    source: Literal["default", "file", "environment", "flag"]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.source} {self.name}".strip()


@dataclass(frozen=True)
class LoadedSettings:
    settings: Settings
    origins: Mapping[str, SettingOrigin]


_RawValues: TypeAlias = Iterator[tuple[SettingSpec, object, SettingOrigin]]


def find_settings_file(config: Path | None, environ: Mapping[str, str], directory: Path) -> Path | None:
    """Return the settings file: `--config`, `HEADRACE_CONFIG` or `headrace.toml` in `directory`, in this order.

    Returns None if neither option is given and `directory` has no such file.
    """
    if config is not None:
        return config
    if named := environ.get(CONFIG_ENV):
        return Path(named)
    here = directory / FILE_NAME
    return here if here.exists() else None


def load_settings(flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None) -> LoadedSettings:
    """Merge and validate the settings of all sources. Raises SettingsError.

    An overridden value is not validated; an unknown name is always an error.
    """
    values: dict[str, object] = {}
    origins = dict.fromkeys(SETTINGS, SettingOrigin("default"))
    winning: dict[str, tuple[SettingSpec, object, SettingOrigin]] = {}
    for given in (_read_file(file), _read_environ(environ), _read_flags(flags)):
        winning |= {each[0].key: each for each in given}
    for each, raw, origin in winning.values():
        values[each.key] = _parse_value(each, raw, origin)
        origins[each.key] = origin
    loaded = LoadedSettings(build_section(Settings, values), origins)
    _check_constraints(loaded)
    return loaded


def _read_file(file: Path | None) -> _RawValues:
    if file is None:
        return
    origin = SettingOrigin("file", str(file))
    for section, table in _read_toml(file).items():
        if section not in Settings.__dataclass_fields__:
            raise _build_unknown_name_error("section", section, origin, Settings.__dataclass_fields__)
        yield from _read_table(section, table, origin)


def _read_table(section: str, table: object, origin: SettingOrigin) -> _RawValues:
    if not isinstance(table, dict):
        raise SettingsError(
            f"{section} ({origin}) is a section, not a setting: write [{section}] and put its keys below it."
        )
    for name, raw in cast("dict[str, object]", table).items():
        if (key := f"{section}.{name}") in SECTIONS:
            yield from _read_table(key, raw, origin)
        else:
            yield _find_spec(key, origin), raw, origin


def _read_toml(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"Cannot read the settings file {file}: {error.strerror}.") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise SettingsError(f"The settings file {file} is not valid TOML: {error}.") from error


def _read_environ(environ: Mapping[str, str]) -> _RawValues:
    for variable, raw in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable in NOT_SETTINGS:
            continue
        origin = SettingOrigin("environment", variable)
        current = _RENAMED_VARIABLES.get(variable, variable)
        if current not in KEY_BY_ENV:
            raise _build_unknown_name_error("setting", variable, origin, [*KEY_BY_ENV, *NOT_SETTINGS])
        yield SETTINGS[KEY_BY_ENV[current]], raw, origin


def _read_flags(flags: Mapping[str, object]) -> _RawValues:
    for key, raw in flags.items():
        origin = SettingOrigin("flag", f"--set {key}")
        yield _find_spec(key, origin), raw, origin


def _find_spec(key: str, origin: SettingOrigin) -> SettingSpec:
    current = RENAMED.get(key, key)
    if current not in SETTINGS:
        raise _build_unknown_name_error("setting", key, origin, SETTINGS)
    return SETTINGS[current]


def _build_unknown_name_error(noun: str, word: str, origin: SettingOrigin, known: Iterable[str]) -> SettingsError:
    # The value is left out of the message: the value of a misspelt key may be a password.
    close = get_close_matches(word, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "see docs/reference/settings.md for all settings."
    return SettingsError(f"Unknown {noun} {word} ({origin}): {hint}")


def _parse_value(each: SettingSpec, raw: object, origin: SettingOrigin) -> object:
    try:
        return each.kind.parse(raw)
    except (ValueError, KeyError):
        shown = hide_secret(str(raw)) if each.secret else repr(raw)
        # No cause: the original error may quote part of a password.
        raise SettingsError(f"{each.key} = {shown} ({origin}) is invalid: it must be {each.kind.allowed}.") from None


def _check_constraints(loaded: LoadedSettings) -> None:
    """Check the rules that involve more than one setting. Raises SettingsError."""
    for left, rule, right in CONSTRAINTS:
        left_value, right_value = (SETTINGS[key].get_value(loaded.settings) for key in (left, right))
        if not _IS_SATISFIED[rule](left_value, right_value):
            raise _build_constraint_error(loaded, left, rule, right)
    spool = loaded.settings.spool
    if not spool.always_queue:
        raise SettingsError(
            f"spool.always_queue = false ({loaded.origins['spool.always_queue']}) is not supported: without the spool, "
            "a record would be lost when its destination fails, and producers would block on every timeout. "
            "Remove the setting; use spool.type = memory for records that need no disk."
        )
    if spool.min_workers > spool.max_workers > 0:
        raise _build_constraint_error(loaded, "spool.min_workers", "must not be more than", "spool.max_workers")


def _build_constraint_error(loaded: LoadedSettings, left: str, rule: str, right: str) -> SettingsError:
    def named(key: str) -> str:
        value = SETTINGS[key].format(SETTINGS[key].get_value(loaded.settings))
        return f"{key} = {value} ({loaded.origins[key]})"

    return SettingsError(f"{named(left)} {rule} {named(right)}: change one of the two.")
