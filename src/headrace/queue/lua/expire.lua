-- expire: delete waiting jobs whose TTL has passed.
--@flags allow-oom
--@include maintenance, save
-- KEYS[1]    meta of the shard (routes the script)
-- ARGV       prefix, maxlen, most jobs in this call
-- Returns    how many expired
local expired = expire_overdue_jobs(ARGV[3])
save_all(ARGV[2])
return expired
