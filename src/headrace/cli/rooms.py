"""Which rooms keep tables in PostgreSQL. A room that gets some is added here."""

from __future__ import annotations

from importlib.resources import files

from headrace.postgres.migrate import Rooms

ROOMS = ("postgres", "cold", "api", "alerts", "autoscale")
POSTGRES_ROOMS: Rooms = {room: files("headrace") / room / "schema" for room in ROOMS}
