"""Limits on concurrent work per tenant. Thread-safe."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from threading import Lock

from headrace.model.names import EnvRef


@dataclass(frozen=True)
class SlotLimits:
    """Maximum number of concurrent operations per environment, per organisation, and in total."""

    environment: int
    organisation: int
    total: int


class TenantSlots:
    """Slots for concurrent operations. A tenant that uses all of its slots leaves those of others free."""

    def __init__(self, limits: SlotLimits) -> None:
        self._limits = limits
        self._lock = Lock()
        self._environments: Counter[EnvRef] = Counter()
        self._organisations: Counter[str] = Counter()

    def acquire(self, env: EnvRef) -> bool:
        """Take a slot. Return False if the environment, its organisation or all tenants together have none left."""
        with self._lock:
            if (
                self._environments[env] >= self._limits.environment
                or self._organisations[env.org] >= self._limits.organisation
                or self._organisations.total() >= self._limits.total
            ):
                return False
            self._environments[env] += 1
            self._organisations[env.org] += 1
            return True

    def release(self, env: EnvRef) -> None:
        with self._lock:
            self._environments[env] -= 1
            self._organisations[env.org] -= 1
            self._environments += Counter()  # drops entries that are 0
            self._organisations += Counter()
