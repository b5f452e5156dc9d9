"""One evaluator at a time, wherever it runs."""

from __future__ import annotations

from headrace.postgres import lease


class EvaluatorFenced(lease.Fenced):
    """Another process evaluates the rules now. Nothing was written."""


class Lease(lease.Lease):
    name = "evaluator"
    fenced = EvaluatorFenced
