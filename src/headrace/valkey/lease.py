"""Leases in Valkey: a key that holds its owner and expires, so that at most one owner holds it.

The scripts run even when Valkey's memory is full: a holder that could not renew its lease would stop freeing memory.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from headrace.valkey.scripts import Script, ScriptCall, load_script

SCRIPTS = ("acquire_lease", "renew_lease", "release_lease", "record_holder")


@cache
def script(name: str) -> Script:
    return load_script(files("headrace.valkey") / "lua", name)


def acquire_lease(key: str, owner: str, lease_s: float) -> ScriptCall[str]:
    """Acquire the lease if it is free, or renew it. Return the owner that holds it now."""
    return ScriptCall(script("acquire_lease"), [key], [owner, int(lease_s * 1000)], bytes.decode)


def renew_lease(key: str, owner: str, lease_s: float) -> ScriptCall[bool]:
    """Renew the lease if the owner still holds it. Return whether it does."""
    return ScriptCall(script("renew_lease"), [key], [owner, int(lease_s * 1000)], bool)


def release_lease(key: str, owner: str) -> ScriptCall[bool]:
    """Release the lease. Return whether the owner held it."""
    return ScriptCall(script("release_lease"), [key], [owner], bool)


def record_holder(key: str, owner: str) -> ScriptCall[bool]:
    """Record an owner in a key that does not expire."""
    return ScriptCall(script("record_holder"), [key], [owner], bool)
