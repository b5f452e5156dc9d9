"""Lease that elects one evaluator."""

from __future__ import annotations

from headrace.postgres import lease


class EvaluatorFenced(lease.Fenced):
    """Another process now evaluates alert rules. Nothing was written."""


class Lease(lease.Lease):
    name = "evaluator"
    fenced = EvaluatorFenced
