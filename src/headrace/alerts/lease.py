"""Lease that elects one evaluator."""

from __future__ import annotations

from headrace.postgres import lease


class EvaluatorFenced(lease.LeaseFenced):
    """Another process now evaluates alert rules. Nothing was written."""


class EvaluatorLease(lease.PostgresLease):
    name = "evaluator"
    fenced = EvaluatorFenced
