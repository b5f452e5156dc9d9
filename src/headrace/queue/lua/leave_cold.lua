-- leave_cold: end cold mode: no job waits in PostgreSQL, which has closed the epoch. New jobs go to the warm tier
-- again.
--@flags allow-oom
--@include fencing, save
-- KEYS[1]    hash of the queue (routes the script)
-- ARGV       prefix, maxlen, token of the mover, E, Q, the epoch that was closed, the next epoch
-- Returns    1, or 0 if the queue has another epoch
-- Errors     FENCED: another mover was elected
local E, Q = ARGV[4], ARGV[5]
if is_fenced(ARGV[3]) then return redis.error_reply('FENCED another mover took over') end
local queue = load_queue(E, Q)
local cold = queue.cold
if not cold or cold.epoch ~= tonumber(ARGV[6]) then return 0 end
cold.on, cold.epoch, queue.cold_changed, queue.resync = 0, tonumber(ARGV[7]), true, true
save_all(ARGV[2])
-- Last: the mover visits a listed queue that is not in cold mode in vain, but would never visit one in cold mode that
-- is not listed.
redis.call('SREM', COLD, queue.name)
redis.call('ZREM', REFILL_REQUESTS, queue.name)
return 1
