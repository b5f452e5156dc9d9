"""The warm tier: multi-tenant jobs on Valkey, every change of a job's state in one Lua script."""
