-- expire: remove waiting jobs whose TTL has ended.
--@flags allow-oom
--@include maintenance, save
-- KEYS[1]    the shard's meta (routes the script)
-- ARGV       prefix, maxlen, most jobs in this call
-- Returns    how many expired
local expired = expire_overdue_jobs(ARGV[3])
save_all(ARGV[2])
return expired
