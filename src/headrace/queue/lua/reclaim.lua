-- reclaim: return jobs whose lease ended without a result; bury those at their last attempt.
--@flags allow-oom
--@include maintenance, save
-- KEYS[1]    meta of the shard (routes the script)
-- ARGV       prefix, maxlen, most jobs in this call
-- Returns    how many leases had ended
local ended = reclaim_ended_leases(ARGV[3])
save_all(ARGV[2])
return ended
