"""Declares every setting, and loads settings from the TOML file, the environment and flags.

Each setting is declared once, with its default, description and allowed values; the reference page,
`headrace config show` and the names of environment variables are derived from that declaration.
`load_settings` merges the sources (a flag overrides the environment, which overrides the file, which
overrides the default) and validates the result once, into frozen dataclasses: code that holds a
`Settings` does not parse or check values again.

An unknown name or an invalid value raises an error with the key, its origin and the allowed values. A
password never appears in a message, in the output of `config show` or in a `repr`. This package does not
read `os.environ` (the CLI passes it in) and imports only the standard library, `headrace.errors` and
`headrace.kinds`.
"""

from __future__ import annotations

from headrace.settings.alerts import AlertsSettings
from headrace.settings.api import ApiSettings
from headrace.settings.load import CONFIG_ENV, CONTEXT_ENV, FILE_NAME, LoadedSettings, find_settings_file, load_settings
from headrace.settings.log import LogSettings
from headrace.settings.metrics import QueueSnapshotSettings
from headrace.settings.secrets import mask_secret
from headrace.settings.servers import EmbeddedSettings
from headrace.settings.spec import SETTINGS, Settings, SettingSpec

__all__ = [
    "CONFIG_ENV",
    "CONTEXT_ENV",
    "FILE_NAME",
    "SETTINGS",
    "AlertsSettings",
    "ApiSettings",
    "EmbeddedSettings",
    "LoadedSettings",
    "LogSettings",
    "QueueSnapshotSettings",
    "SettingSpec",
    "Settings",
    "find_settings_file",
    "load_settings",
    "mask_secret",
]
