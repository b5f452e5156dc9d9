"""The cold tier: jobs that do not fit into Valkey wait in PostgreSQL, and come back in order. Sits on `queue`."""
