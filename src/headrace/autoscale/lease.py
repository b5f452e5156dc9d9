"""Lease that elects one autoscaler."""

from __future__ import annotations

from headrace.errors import LeaseFenced
from headrace.postgres.lease import PostgresLease


class AutoscalerFenced(LeaseFenced):
    """Another process now runs the autoscaler. Nothing was written or started."""


class AutoscalerLease(PostgresLease):
    name = "autoscaler"
    fenced = AutoscalerFenced
