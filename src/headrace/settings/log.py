from __future__ import annotations

from dataclasses import dataclass

from headrace.kinds import choice
from headrace.settings.declare import setting


@dataclass(frozen=True)
class LogSettings:
    level: str = setting("info", "Minimum severity of log messages.", choice("debug", "info", "warning", "error"))
    format: str = setting("text", "Log format: text for people, JSON for machines.", choice("text", "json"))
