-- get: everything known of one job.
-- KEYS       the job's hash, its body
-- Returns    {its fields and values, its body}; both empty if there is none, the fields alone if it is done
return { redis.call('HGETALL', KEYS[1]), redis.call('GET', KEYS[2]) }
