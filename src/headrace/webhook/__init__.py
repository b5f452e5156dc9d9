"""Telling other systems over HTTP: to addresses that may be reached, signed, and with an end in time."""
