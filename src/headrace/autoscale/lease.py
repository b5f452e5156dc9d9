"""One autoscaler at a time, wherever it runs."""

from __future__ import annotations

from headrace.postgres import lease


class AutoscalerFenced(lease.Fenced):
    """Another process decides about workers now. Nothing was written or started."""


class Lease(lease.Lease):
    name = "autoscaler"
    fenced = AutoscalerFenced
