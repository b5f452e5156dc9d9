-- get: read one job.
-- KEYS       hash of the job, its body
-- Returns    {fields and values, body}; both empty: there is no such job; no fields and an empty body: it is done; no
--            fields and another body: it is dead, and PostgreSQL has it
return { redis.call('HGETALL', KEYS[1]), redis.call('GET', KEYS[2]) }
