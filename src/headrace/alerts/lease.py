"""Lease that elects one evaluator."""

from __future__ import annotations

from headrace.errors import LeaseFenced
from headrace.postgres.lease import PostgresLease


class EvaluatorFenced(LeaseFenced):
    """Another process now evaluates alert rules. Nothing was written."""


class EvaluatorLease(PostgresLease):
    name = "evaluator"
    fenced = EvaluatorFenced
