"""Options with which the API enqueues and moves jobs, the same as for every other producer."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.cold.store import NO_LIMITS, ColdLimits
from headrace.cold.tiers import FAR_MS, KEEP_MS
from headrace.queue.client import QueueOptions


@dataclass(frozen=True)
class QueueAccess:
    options: QueueOptions = field(default_factory=QueueOptions)
    limits: ColdLimits = NO_LIMITS
    far_ms: int = FAR_MS
    keep_ms: int = KEEP_MS
