"""Kinds of values in settings and options: how text is parsed into a value, and how a value is formatted.

A formatted value can be parsed back into the same value. Imports only the standard library.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar, cast
from urllib.parse import urlsplit

T = TypeVar("T")

Seconds: TypeAlias = float
"""A duration in seconds; written as "500ms", "30s", "5m", "2h" or "1d" in settings and options."""

Bytes: TypeAlias = int
"""A size in bytes; written as "512B", "64KiB", "1MiB" or "2GiB" in settings and options, or without the B: "64Ki"."""


@dataclass(frozen=True)
class ValueKind(Generic[T]):
    """How a value is written as text.

    `parse` raises ValueError or KeyError. Messages show `allowed`, never that error, which may quote a secret.
    """

    allowed: str
    parse: Callable[[object], T]
    format: Callable[[T], str] = str


def _parse_text(raw: object) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise ValueError
    return raw.strip()


def text(allowed: str, pattern: str = r"\S+") -> ValueKind[str]:
    def parse(raw: object) -> str:
        if not re.fullmatch(pattern, value := _parse_text(raw)):
            raise ValueError
        return value

    return ValueKind(allowed, parse)


def choice(*values: str) -> ValueKind[str]:
    return text("one of " + ", ".join(f"`{value}`" for value in values), "|".join(values))


def integer(low: int, high: int) -> ValueKind[int]:
    def parse(raw: object) -> int:
        # bool is a subclass of int, but `shards = true` is a mistake.
        value = raw if isinstance(raw, int) and not isinstance(raw, bool) else int(_parse_text(raw))
        return _check_range(value, low, high)

    return ValueKind(f"a whole number from {low} to {high}", parse)


def number(low: float, high: float) -> ValueKind[float]:
    def parse(raw: object) -> float:
        value = raw if isinstance(raw, int | float) and not isinstance(raw, bool) else float(_parse_text(raw))
        if not low <= value <= high:  # rejects "nan" too
            raise ValueError
        return float(value)

    return ValueKind(f"a number from {low:g} to {high:g}", parse, repr)


def boolean() -> ValueKind[bool]:
    """Return the kind for a boolean: `true` or `false`, in TOML and in the environment."""

    def parse(raw: object) -> bool:
        return raw if isinstance(raw, bool) else {"true": True, "false": False}[_parse_text(raw)]

    return ValueKind("`true` or `false`", parse, lambda value: str(value).lower())


def path() -> ValueKind[Path]:
    def parse(raw: object) -> Path:
        # `~` is not expanded in a file or a variable; used literally, it would create a directory of that name.
        if (value := _parse_text(raw)).startswith("~"):
            raise ValueError
        return Path(value)

    return ValueKind("an absolute or relative path, without `~`", parse)


def url(*schemes: str) -> ValueKind[str]:
    def parse(raw: object) -> str:
        parts = urlsplit(value := _parse_text(raw))
        if parts.scheme not in schemes or "://" not in value or not parts.netloc + parts.path.strip("/"):
            raise ValueError
        if "," not in parts.netloc:  # libpq accepts several hosts in one URL; urlsplit does not
            _ = parts.port  # raises ValueError if the port is invalid
        return value

    return ValueKind("a URL that starts with " + ", ".join(f"`{scheme}://`" for scheme in schemes), parse)


def optional(kind: ValueKind[T]) -> ValueKind[T | None]:
    """Return a kind that also accepts empty text, which means None: TOML has no null."""

    def parse(raw: object) -> T | None:
        return None if raw == "" else kind.parse(raw)

    def show(value: T | None) -> str:
        return "" if value is None else kind.format(value)

    return ValueKind(f"{kind.allowed}; empty = none", parse, show)


def several(kind: ValueKind[str]) -> ValueKind[tuple[str, ...]]:
    """Return the kind for a list of values: a list in TOML, comma-separated text elsewhere. Drops duplicates."""

    def parse(raw: object) -> tuple[str, ...]:
        parts = cast("list[object]", raw) if isinstance(raw, list) else str(raw).split(",") if raw != "" else []
        return tuple(dict.fromkeys(kind.parse(part) for part in parts))

    return ValueKind(f"{kind.allowed}; separate several with commas; empty = none", parse, ",".join)


def network() -> ValueKind[str]:
    """Return the kind for an IP address or a network, normalised to its shortest notation."""
    return ValueKind(
        "an IP address or a network such as `10.0.0.0/8`", lambda raw: str(ipaddress.ip_network(_parse_text(raw)))
    )


_HOST_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"


def host() -> ValueKind[str]:
    """Return the kind for a host name, an address or a network, in lower case and in its shortest notation."""

    def parse(raw: object) -> str:
        value = _parse_text(raw).lower()
        if "/" in value:
            return str(ipaddress.ip_network(value))
        if ":" in value or value.rpartition(".")[2].isdigit():
            return str(ipaddress.ip_address(value))
        if not re.fullmatch(rf"{_HOST_LABEL}(\.{_HOST_LABEL})*", value):
            raise ValueError
        return value

    return ValueKind("a host name, an address or a network such as `10.1.0.0/16`", parse)


def lists_by_name(kind: ValueKind[str]) -> ValueKind[Mapping[str, tuple[str, ...]]]:
    """Return the kind for a list of values per name: a table of lists in TOML, a JSON object elsewhere."""

    def parse(raw: object) -> Mapping[str, tuple[str, ...]]:
        table: object = raw if isinstance(raw, dict) else json.loads(_parse_text(raw))
        if not isinstance(table, dict):
            raise ValueError
        lists = cast("dict[str, object]", table)
        if not all(isinstance(values, list) for values in lists.values()):
            raise ValueError
        return {name: several(kind).parse(values) for name, values in lists.items()}

    return ValueKind(f"a table (as text, JSON) of lists of {kind.allowed}", parse, json.dumps)


_DURATION_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_ACCEPTED_SIZE_UNITS = {
    **_SIZE_UNITS,
    **{unit.removesuffix("B"): factor for unit, factor in _SIZE_UNITS.items() if unit != "B"},
}


def duration(low: str, high: str) -> ValueKind[Seconds]:
    low_ms, high_ms = (_parse_units(bound, _DURATION_UNITS) for bound in (low, high))
    return ValueKind(
        f"a duration from {low} to {high} (whole number with `ms`, `s`, `m`, `h` or `d`)",
        lambda raw: _check_range(_parse_units(_parse_text(raw), _DURATION_UNITS), low_ms, high_ms) / 1000,
        lambda seconds: _format_units(round(seconds * 1000), _DURATION_UNITS),
    )


def size(low: str, high: str) -> ValueKind[Bytes]:
    low_bytes, high_bytes = (_parse_units(bound, _SIZE_UNITS) for bound in (low, high))
    return ValueKind(
        f"a size from {low} to {high} (whole number with `B`, `KiB`, `MiB`, `GiB` or `TiB`)",
        lambda raw: _check_range(_parse_units(_parse_text(raw), _ACCEPTED_SIZE_UNITS), low_bytes, high_bytes),
        lambda value: _format_units(value, _SIZE_UNITS),
    )


@dataclass(frozen=True)
class SizeOrPercent:
    """A size in bytes, or a percentage of the memory or disk that its setting names."""

    bytes: Bytes = 0
    percent: float | None = None

    def resolve(self, whole_bytes: int) -> Bytes:
        """Return the size in bytes. `whole_bytes` is the size of the whole that a percentage refers to."""
        return self.bytes if self.percent is None else int(whole_bytes * self.percent / 100)


def size_or_percent(low: str, high: str, whole: str) -> ValueKind[SizeOrPercent]:
    """Return the kind for a size, a percentage (`10%`) or a ratio with a decimal point (`0.10`) of the `whole`."""
    sizes = size(low, high)

    def parse(raw: object) -> SizeOrPercent:
        given = repr(raw) if isinstance(raw, float) else _parse_text(raw)
        if match := re.fullmatch(r"(\d{1,3}(?:\.\d{1,4})?) ?%", given, re.ASCII):
            return SizeOrPercent(percent=_check_percent(float(match[1])))
        if re.fullmatch(r"[01]?\.\d{1,6}", given, re.ASCII):
            return SizeOrPercent(percent=_check_percent(float(given) * 100))
        return SizeOrPercent(sizes.parse(raw))

    def show(value: SizeOrPercent) -> str:
        return sizes.format(value.bytes) if value.percent is None else f"{value.percent:g}%"

    return ValueKind(f"{sizes.allowed}, or a share of {whole} up to 100% (`10%` or `0.10`)", parse, show)


def _check_percent(value: float) -> float:
    if not 0 < value <= 100:
        raise ValueError
    return round(value, 4)


def _check_range(value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise ValueError
    return value


def _parse_units(value: str, units: Mapping[str, int]) -> int:
    if not (match := re.fullmatch(r"(\d+) ?([A-Za-z]+)", value)):
        raise ValueError
    return int(match[1]) * units[match[2]]


def _format_units(value: int, units: Mapping[str, int]) -> str:
    """Format a value in the largest unit that gives a whole number, so that parsing returns the same value."""
    unit = [unit for unit, factor in units.items() if value % factor == 0 and factor <= max(value, 1)][-1]
    return f"{value // units[unit]}{unit}"
