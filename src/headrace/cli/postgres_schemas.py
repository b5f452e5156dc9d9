"""The packages that have tables in PostgreSQL, and the folders of their migrations.

A package that gets its first migration is added here.
"""

from __future__ import annotations

from importlib.resources import files

from headrace.postgres.migrate import SchemaFolders

PACKAGES_WITH_TABLES = ("postgres", "cold", "api", "alerts", "autoscale")
POSTGRES_SCHEMAS: SchemaFolders = {package: files("headrace") / package / "schema" for package in PACKAGES_WITH_TABLES}
