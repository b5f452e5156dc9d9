"""Every key of the snapshot. They share one hash tag, so that one script changes them together on a cluster.

{PREFIX}:current      string  the version that is served, as in `v12345`
{PREFIX}:number       string  the newest number that was given to a refresher: the fencing token
{PREFIX}:lease        string  who refreshes; ends with its lease
{PREFIX}:versions     zset    versions that were served → their numbers, those that are kept
{PREFIX}:attempts     hash    ok, error, superseded: how many ended so; what the newest failure was
{PREFIX}:v12345:data  string  payload (payload.py); not changed once it is served
{PREFIX}:v12345:meta  hash    generated_at_unix, source, aggregation_duration_ms, rows_total, series_total, status,
                              checksum, bytes, owner, token
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Keys:
    prefix: str

    @property
    def begin(self) -> str:
        """How each of them begins; switch.lua builds those of older versions from it."""
        return f"{{{self.prefix}}}:"

    @property
    def current(self) -> str:
        return f"{self.begin}current"

    @property
    def number(self) -> str:
        return f"{self.begin}number"

    @property
    def lease(self) -> str:
        return f"{self.begin}lease"

    @property
    def versions(self) -> str:
        return f"{self.begin}versions"

    @property
    def attempts(self) -> str:
        return f"{self.begin}attempts"

    def data(self, version: int) -> str:
        return f"{self.begin}{version_name(version)}:data"

    def meta(self, version: int) -> str:
        return f"{self.begin}{version_name(version)}:meta"


def version_name(version: int) -> str:
    return f"v{version}"


def version_of(name: bytes) -> int:
    """The number in a name; 0 of one that is empty or makes no sense."""
    digits = name.removeprefix(b"v")
    return int(digits) if digits.isdigit() else 0
