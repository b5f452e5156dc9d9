-- drop_dead: delete dead jobs that PostgreSQL has stored, except those that were redriven or buried again since. As
-- with jobs that are done, ids can stay reserved: a producer that got no answer and repeats the enqueue must not run
-- the job again.
--@flags allow-oom
--@include queues, dead_bytes
-- KEYS[1]    dead jobs of the queue (routes the script)
-- ARGV       prefix, maxlen, E, Q, ms for which ids stay reserved (0: not at all), then for each job: J, buried ms
-- Returns    how many were deleted
local keep_ms = tonumber(ARGV[5])
local queue = load_queue(ARGV[3], ARGV[4])
local dropped = 0
for i = 6, #ARGV, 2 do
  if redis.call('ZSCORE', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    local EJ = ARGV[3] .. ':' .. ARGV[i]
    count_dead_job(queue, tonumber(redis.call('HGET', job_key(EJ), 'size') or 0), -1)
    -- In this order: if the script fails, list_dead removes the rest of the job.
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
