"""Valkey keys of the snapshot. They share one hash tag, so that a script can change them together on a cluster.

{PREFIX}:current      string  the served version, such as `v12345`
{PREFIX}:number       string  the highest version claimed by a refresher (the fencing token)
{PREFIX}:lease        string  owner of the refresh lease; expires with it
{PREFIX}:versions     zset    published versions that are kept; the score is the version number
{PREFIX}:attempts     hash    counts of outcomes (ok, error, superseded), the last success and failure, and the duration
                              of the last refresh
{PREFIX}:v12345:data  string  payload (payload.py); never changed once published
{PREFIX}:v12345:meta  hash    generated_at_unix, source, aggregation_duration_ms, rows_total, series_total, status,
                              checksum, bytes, owner, token
"""

from __future__ import annotations


class SnapshotKeys:
    def __init__(self, prefix: str) -> None:
        self.key_prefix = f"{{{prefix}}}:"  # switch.lua builds the keys of older versions from it
        self.current = f"{self.key_prefix}current"
        self.number = f"{self.key_prefix}number"
        self.lease = f"{self.key_prefix}lease"
        self.versions = f"{self.key_prefix}versions"
        self.attempts = f"{self.key_prefix}attempts"

    def data(self, version: int) -> str:
        return f"{self.key_prefix}v{version}:data"

    def meta(self, version: int) -> str:
        return f"{self.key_prefix}v{version}:meta"


def parse_version(name: bytes) -> int:
    """Parse a version name such as `v12`; 0 if it is empty or malformed."""
    digits = name.removeprefix(b"v")
    return int(digits) if digits.isdigit() else 0
