"""Lease that elects one autoscaler."""

from __future__ import annotations

from headrace.postgres import lease


class AutoscalerFenced(lease.LeaseFenced):
    """Another process now runs the autoscaler. Nothing was written or started."""


class AutoscalerLease(lease.PostgresLease):
    name = "autoscaler"
    fenced = AutoscalerFenced
