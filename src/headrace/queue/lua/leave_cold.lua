-- leave_cold: nothing waits in PostgreSQL and its epoch there is closed; new jobs go to the warm tier again.
--@flags allow-oom
--@include fencing, save
-- KEYS[1]    the queue's hash (routes the script to its shard)
-- ARGV       prefix, maxlen, mover's token, E, Q, the epoch that was closed, the next one
-- Returns    1, or 0 if the queue's epoch is another one by now; FENCED if another mover took over
local E, Q = ARGV[4], ARGV[5]
if is_fenced(ARGV[3]) then return redis.error_reply('FENCED another mover took over') end
local queue = load_queue(E, Q)
local cold = queue.cold
if not cold or cold.epoch ~= tonumber(ARGV[6]) then return 0 end
cold.on, cold.epoch, queue.cold_changed, queue.resync = 0, tonumber(ARGV[7]), true, true
save_all(ARGV[2])
-- Last: a queue that is listed and not in cold mode is looked at in vain, one in cold mode that is not listed is forgotten.
redis.call('SREM', COLD, queue.name)
redis.call('ZREM', REFILL_REQUESTS, queue.name)
return 1
