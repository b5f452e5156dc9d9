"""How much work of each tenant may be under way at once. Safe for threads."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from threading import Lock

from headrace.model.names import EnvRef


@dataclass(frozen=True)
class SlotLimits:
    """Most pieces of work at once: of one environment, of one organisation, and of all."""

    environment: int
    organisation: int
    total: int


class TenantSlots:
    """Slots for work under way. A tenant that has taken all of its own leaves those of the others free."""

    def __init__(self, limits: SlotLimits) -> None:
        self._limits = limits
        self._lock = Lock()
        self._environments: Counter[EnvRef] = Counter()
        self._organisations: Counter[str] = Counter()

    def take(self, env: EnvRef) -> bool:
        """Take a slot; False if the environment, its organisation or all tenants together have none left."""
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
        """Give back a slot that was taken."""
        with self._lock:
            self._environments[env] -= 1
            self._organisations[env.org] -= 1
            self._environments += Counter()  # drops those with none
            self._organisations += Counter()
