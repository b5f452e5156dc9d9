"""The cold tier: jobs that do not fit into Valkey wait in PostgreSQL and return in order. Built on `queue`."""
