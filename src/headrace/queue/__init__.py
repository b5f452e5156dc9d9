"""The warm tier: multi-tenant jobs on Valkey. Every change of a job's state is one Lua script."""
