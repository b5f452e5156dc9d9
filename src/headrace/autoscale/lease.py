"""Lease that elects one autoscaler."""

from __future__ import annotations

from headrace.postgres import lease


class AutoscalerFenced(lease.Fenced):
    """Another process now runs the autoscaler. Nothing was written or started."""


class Lease(lease.Lease):
    name = "autoscaler"
    fenced = AutoscalerFenced
