"""Checks of `headrace doctor` on the stored bounds, which apply to every client."""

from __future__ import annotations

from headrace.cli.bounds import KEYS
from headrace.cli.findings import Finding
from headrace.cli.humane import size_text
from headrace.errors import HeadraceError
from headrace.queue.bounds import NO_BOUNDS, Bounds, read_bounds
from headrace.settings import SETTINGS, Settings
from headrace.valkey.connect import connect


def examine_bounds(url: str, settings: Settings) -> Finding:
    try:
        with connect(url) as client:
            stored = read_bounds(client)
    except HeadraceError as error:
        return Finding("stored bounds", False, "unknown", str(error))
    if stored == NO_BOUNDS:
        return Finding(
            "stored bounds",
            True,
            "none",
            "Each client uses the caps of its own settings; `headrace config apply` stores these for all.",
        )
    here = {name: SETTINGS[key].value_in(settings) for name, key in KEYS.items()}
    other = [
        f"{KEYS[name]} = {value} (here {here[name]})"
        for name, value in vars(stored).items()
        if value not in (None, here[name])
    ]
    advice = f"Stored: {', '.join(other)}. Stored values apply; `headrace config apply` stores the settings used here."
    return Finding("stored bounds", True, describe(stored), advice if other else "")


def describe(stored: Bounds) -> str:
    parts = [
        None if stored.max_items is None else f"{stored.max_items} jobs per queue",
        None if stored.max_bytes is None else f"{size_text(stored.max_bytes)} per queue",
        None
        if stored.shard_bytes is None
        else f"{size_text(stored.shard_bytes) if stored.shard_bytes else 'no limit'} per shard",
        None if stored.stream_maxlen is None else f"{stored.stream_maxlen} metric events per shard",
    ]
    return ", ".join(part for part in parts if part is not None)
