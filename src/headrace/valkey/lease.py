"""Leases in Valkey: a key that holds its holder and expires, see runtime/lease.py.

The scripts run even when Valkey's memory is full: a holder that could not renew its lease would stop freeing memory.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from headrace.runtime.lease import Lease, LeaseState, boot_clock_s
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import Script, ScriptCall, load_script, run

# The last two are no leases, but small values that must be written while memory is full, too.
SCRIPTS = ("acquire_lease", "renew_lease", "release_lease", "record_holder", "save_status", "add_sample")


@cache
def script(name: str) -> Script:
    return load_script(files("headrace.valkey") / "lua", name)


class ValkeyLease(Lease):
    """Lease in Valkey; its name is the key."""

    def __init__(self, client: Valkey, key: str, lease_s: float, holder: str | None = None) -> None:
        super().__init__(lease_s, holder)
        self.name = key
        self._client = client
        self._lease_ms = int(lease_s * 1000)

    def renew(self) -> bool:
        """Renew the lease if this process still holds it; never acquire it. Return whether it does. Raises
        QueueUnavailable."""
        if self.token is None:
            return False
        requested_at = boot_clock_s()
        is_renewed = run(
            self._client, ScriptCall(script("renew_lease"), [self.name], [self.holder, self._lease_ms], bool)
        )
        if is_renewed:
            self._renewed_at = requested_at
        return is_renewed

    def _request(self) -> LeaseState:
        holder = run(
            self._client, ScriptCall(script("acquire_lease"), [self.name], [self.holder, self._lease_ms], bytes.decode)
        )
        return LeaseState(token=0) if holder == self.holder else LeaseState(other_holder=holder)

    def _release(self) -> None:
        run(self._client, ScriptCall(script("release_lease"), [self.name], [self.holder], bool))
