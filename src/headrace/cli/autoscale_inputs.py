"""Format the inputs of a decision for `headrace autoscale explain`. Pure.

Inputs come from the database and may have been stored by another release, so every field may be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.autoscale.sentences import format_span

MAX_SHOWN = 10
"""Queues and streams shown per decision; `--json` prints all that are stored."""


def format_inputs(inputs: Mapping[str, Any]) -> list[str]:
    """Return lines: the demand and the running workers, then each queue or stream, then limits of environments."""
    sources: Sequence[Mapping[str, Any]] = inputs.get("sources") or []
    more = len(sources[MAX_SHOWN:]) + int(inputs.get("more_sources") or 0)
    lines = [_format_demand(inputs), *map(_format_source, sources[:MAX_SHOWN])]
    if more:
        lines.append(f"and {more} more")
    limits: Mapping[str, int] = inputs.get("rooms") or {}
    return [*lines, *(f"the limit of {env} leaves {slots} slots" for env, slots in sorted(limits.items()))]


def _format_demand(inputs: Mapping[str, Any]) -> str:
    workers = inputs.get("workers")
    running = f"running workers: {'unknown' if workers is None else workers}"
    if "slots" not in inputs or "allowed" not in inputs:
        return running
    return f"needs {inputs['slots']:.3g} slots, {inputs['allowed']:.3g} allowed by limits and pauses; {running}"


def _format_source(source: Mapping[str, Any]) -> str:
    where = f" in {source['env']}" if source.get("env") else ""
    return f"{source.get('name', '')}{where}: {', '.join(_format_values(source))}"


def _format_values(source: Mapping[str, Any]) -> Iterator[str]:
    def show(name: str, pattern: str = "{}") -> str:
        value = source.get(name)
        return "unknown" if value is None else pattern.format(value)

    cold = f" ({source['cold']} in PostgreSQL)" if source.get("cold") else ""
    yield f"{show('depth')} waiting{cold}"
    yield f"{show('running')} running"
    yield f"{show('arrivals_per_s', '{:.3g}/s')} arriving"
    yield f"run time {show('service_s', '{:.3g} s')}"
    if source.get("age_s") is not None:
        yield f"oldest {format_span(source['age_s'])}"
    if source.get("scheduled"):
        yield f"{source['scheduled']} awaiting retry"
    if source.get("due_soon", 0) != 0:
        yield f"{show('due_soon')} due soon"
    if source.get("limit") is not None:
        yield f"limit {source['limit']}"
    if source.get("paused"):
        yield "paused"
    if source.get("unknown"):
        yield f"unknown: {source['unknown']}"
