"""The packages that have tables in PostgreSQL, and the folders of their migrations.

A package that gets its first migration is added here.
"""

from __future__ import annotations

from importlib.resources import files

from headrace.postgres.migrate import Rooms

ROOMS = ("postgres", "cold", "api", "alerts", "autoscale")
POSTGRES_ROOMS: Rooms = {room: files("headrace") / room / "schema" for room in ROOMS}
