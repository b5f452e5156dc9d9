-- release: make scheduled jobs ready that are due.
--@flags allow-oom
--@include maintenance, save
-- KEYS[1]    the shard's meta (routes the script)
-- ARGV       prefix, maxlen, most jobs in this call
-- Returns    how many became ready
local released = release_due_jobs(ARGV[3])
save_all(ARGV[2])
return released
