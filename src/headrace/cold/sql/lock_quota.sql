-- Until the transaction ends, only one at a time counts what a tenant uses and adds to it.
SELECT pg_advisory_xact_lock(hashtextextended(%(tenant)s, 5021945))
