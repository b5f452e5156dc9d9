-- Until the transaction ends, only one mover at a time compares a shard with what was seen before.
SELECT pg_advisory_xact_lock(5021946, %(shard)s)
