"""Checks of `headrace doctor` on the stored bounds, which apply to every client."""

from __future__ import annotations

from headrace.cli.bounds import SETTING_KEYS
from headrace.cli.doctor_checks import DoctorCheck
from headrace.cli.formatting import format_size
from headrace.errors import HeadraceError
from headrace.queue.bounds import NO_BOUNDS, StoredBounds, read_bounds
from headrace.settings import SETTINGS, Settings
from headrace.valkey.connect import connect


def check_bounds(url: str, settings: Settings) -> DoctorCheck:
    try:
        with connect(url) as client:
            stored = read_bounds(client)
    except HeadraceError as error:
        return DoctorCheck("stored bounds", False, "unknown", str(error))
    if stored == NO_BOUNDS:
        return DoctorCheck(
            "stored bounds",
            True,
            "none",
            "Each client uses the caps of its own settings; `headrace config apply` stores these for all.",
        )
    here = {name: SETTINGS[key].get_value(settings) for name, key in SETTING_KEYS.items()}
    other = [
        f"{SETTING_KEYS[name]} = {value} (here {here[name]})"
        for name, value in vars(stored).items()
        if value not in (None, here[name])
    ]
    advice = f"Stored: {', '.join(other)}. Stored values apply; `headrace config apply` stores the settings used here."
    return DoctorCheck("stored bounds", True, describe_bounds(stored), advice if other else "")


def describe_bounds(stored: StoredBounds) -> str:
    parts = [
        None if stored.max_items is None else f"{stored.max_items} jobs per queue",
        None if stored.max_bytes is None else f"{format_size(stored.max_bytes)} per queue",
        None
        if stored.shard_bytes is None
        else f"{format_size(stored.shard_bytes) if stored.shard_bytes else 'no limit'} per shard",
        None if stored.stream_maxlen is None else f"{stored.stream_maxlen} metric events per shard",
    ]
    return ", ".join(part for part in parts if part is not None)
