-- read_attempts: read the records of the attempts of one job. Records of an earlier job with the same id do not count.
--@include keys
-- KEYS[1]    hash of the job (routes the script)
-- ARGV       prefix, maxlen, E:J
-- Returns    {when the job was enqueued (nil: there is no such job, or it is done), records, oldest first}
return { redis.call('HGET', KEYS[1], 'enqueued'), redis.call('LRANGE', attempts_key(ARGV[3]), 0, -1) }
