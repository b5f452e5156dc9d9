"""Turns signals into events, so that a long-running command finishes its work instead of being interrupted."""

from __future__ import annotations

import asyncio
import signal
import threading

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def install_stop_event(*more: signal.Signals) -> threading.Event:
    """Return an event that is set when SIGTERM, SIGINT or one of `more` arrives. Must be called in the main thread."""
    stop = threading.Event()
    for signal_number in (*STOP_SIGNALS, *more):
        signal.signal(signal_number, lambda _number, _frame: stop.set())
    return stop


def install_signal_event(number: signal.Signals) -> threading.Event:
    """Return an event that is set whenever a signal arrives. Must be called in the main thread."""
    arrived = threading.Event()
    signal.signal(number, lambda _number, _frame: arrived.set())
    return arrived


def install_async_stop_event() -> asyncio.Event:
    """Return an event of the running event loop that is set when SIGTERM or SIGINT arrives."""
    stop = asyncio.Event()
    for signal_number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    return stop
