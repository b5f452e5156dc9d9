"""The command line: it builds all services from the settings, and is the only package that reads the environment.

This module defines the object that every command receives. It imports only click and the settings, because
`headrace --help` imports it; the module of a command is imported when that command runs.

    @click.command()
    @json_option
    @pass_invocation
    def doctor(invocation: Invocation, as_json: bool) -> None: ...
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import click

from headrace.settings import LoadedSettings, Settings, find_settings_file, load_settings


@dataclass(frozen=True)
class Invocation:
    """One run of `headrace`: its root options, and the settings that result from them."""

    config: Path | None
    flags: Mapping[str, str]
    environ: Mapping[str, str]

    @cached_property
    def loaded(self) -> LoadedSettings:
        """Load the settings on first access, so that `headrace version` works with an invalid settings file."""
        return load_settings(self.flags, self.environ, find_settings_file(self.config, self.environ, Path()))

    @property
    def settings(self) -> Settings:
        return self.loaded.settings

    def override(self, **given: object) -> Invocation:
        """Return this invocation with each non-None `section_name` argument applied like `--set section.name=value`."""
        more = {name.replace("_", ".", 1): str(value) for name, value in given.items() if value is not None}
        return replace(self, flags={**self.flags, **more})


def build_root_options(config: Path | None, flags: Mapping[str, str]) -> list[str]:
    """Return the root options that give another `headrace` process this settings file and these flags."""
    file = [] if config is None else ["--config", str(config)]
    return [*file, *(part for key, value in flags.items() for part in ("--set", f"{key}={value}"))]


pass_invocation = click.make_pass_decorator(Invocation)
