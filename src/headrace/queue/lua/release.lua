-- release: make scheduled jobs that are due ready.
--@flags allow-oom
--@include maintenance, save
-- KEYS[1]    meta of the shard (routes the script)
-- ARGV       prefix, maxlen, most jobs in this call
-- Returns    how many became ready
local released = release_due_jobs(ARGV[3])
save_all(ARGV[2])
return released
