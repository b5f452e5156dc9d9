-- drop_dead: dead jobs that PostgreSQL keeps now. One that was redriven or buried again meanwhile is left alone. As with
-- jobs that are done, the id stays taken for a while: a producer that never saw its answer and asks again must not run it.
--@flags allow-oom
--@include queues, dead_bytes
-- KEYS[1]    the queue's dead jobs (routes the script to its shard)
-- ARGV       prefix, maxlen, E, Q, keep ms (0: the id is free at once), then for each job: J, buried ms
-- Returns    how many
local keep_ms = tonumber(ARGV[5])
local queue = load_queue(ARGV[3], ARGV[4])
local dropped = 0
for i = 6, #ARGV, 2 do
  if redis.call('ZSCORE', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    local EJ = ARGV[3] .. ':' .. ARGV[i]
    count_dead_job(queue, tonumber(redis.call('HGET', job_key(EJ), 'size') or 0), -1)
    -- In this order: should it fail on the way, list_dead.lua finds what is left of the job and removes it.
    if keep_ms > 0 then
      redis.call('SET', body_key(EJ), DEAD_IN_POSTGRES, 'PX', keep_ms)
      redis.call('DEL', job_key(EJ))
    else
      redis.call('DEL', job_key(EJ), body_key(EJ))
    end
    redis.call('ZREM', KEYS[1], ARGV[i])
    dropped = dropped + 1
  end
end
if queue.epoch then save_dead_bytes(queue) end
return dropped
