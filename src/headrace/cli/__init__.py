"""The command line: the composition root, and the only place that reads the environment.

This file holds what every command is given. It stays light (click and settings only), because
`headrace --help` imports it; a command's module is imported when that command runs.

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

from headrace.settings import Loaded, Settings, find_file, load


@dataclass(frozen=True)
class Invocation:
    """One run of `headrace`: what the root options said, and the settings that follow from it."""

    config: Path | None
    flags: Mapping[str, str]
    environ: Mapping[str, str]

    @cached_property
    def loaded(self) -> Loaded:
        """Read at first use, so that `headrace version` works beside a broken settings file."""
        return load(self.flags, self.environ, find_file(self.config, self.environ, Path()))

    @property
    def settings(self) -> Settings:
        return self.loaded.settings

    def settings_with(self, **given: str | None) -> Settings:
        """As if `--set section.name=value` had been given for each section_name that is not None."""
        more = {name.replace("_", ".", 1): value for name, value in given.items() if value is not None}
        return replace(self, flags={**self.flags, **more}).settings


pass_invocation = click.make_pass_decorator(Invocation)
