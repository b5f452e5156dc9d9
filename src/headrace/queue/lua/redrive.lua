-- redrive: make dead jobs of a queue ready again with all their attempts, oldest first, as far as caps and quotas
-- allow.
--@include dead_filter, dead_bytes, recovery, quota_checks, shard_capacity, save
-- KEYS[1]    dead jobs of the queue (routes the script)
-- ARGV       prefix, maxlen, E, Q, most jobs to examine, jobs to skip, buried from ms, buried until ms, task ('': any),
--            text in the error ('': any), warm caps of the queue (jobs, bytes), byte cap of the shard (0: none), then
--            job ids (J); none: all
-- Returns    {redriven, examined, of these: matching jobs that found no room}; empty if there is no such queue
local E, Q = ARGV[3], ARGV[4]
if redis.call('EXISTS', queue_key(E, Q)) == 0 then return {} end
local queue = load_queue(E, Q)
local filter = read_dead_filter(E, Q)
local max_items, max_bytes = find_caps(queue, ARGV[11], ARGV[12])
local shard_max = find_shard_cap(ARGV[13])
local moved, remaining = 0, 0

local function redrive_job(J)
  local job = job_key(E .. ':' .. J)
  local v = redis.call('HMGET', job, 'error', 'priority', 'size', 'detail', 'state')
  if v[5] ~= 'dead' then
    place_by_state(E, J, v[5])
    return remove_on_save(dead_key(E, Q), J)
  end
  if not matches_dead_filter(filter, J, v[1]) then return end
  -- After the first job that finds no room, the rest stay dead too: they keep their order.
  local size = tonumber(v[3])
  if remaining > 0 or not job_fits(queue, size, max_items, max_bytes) or not job_fits_shard(queue, size, shard_max)
      or find_exceeded_quota(queue, 1, size) then
    remaining = remaining + 1
    return
  end
  queue.in_flight[#queue.in_flight + 1] = J
  remove_on_save(dead_key(E, Q), J)
  local at = NOW + moved / 4096 -- in order, as jobs of one enqueue
  redis.call('HSET', job, 'state', 'ready', 'attempts', 0, 'due', format_float(at))
  -- A redriven job is to run, even after its TTL, and although it was to be cancelled before it was buried.
  redis.call('HDEL', job, 'expires', 'deferred_since', 'cancel')
  add_ready(queue, J, at, tonumber(v[2]), v[4])
  queue.warm_bytes = queue.warm_bytes + size
  count_dead_job(queue, size, -1)
  count_op(queue, 'redrive')
  moved = moved + 1
end

local found = find_dead_candidates(filter)
for _, J in ipairs(found) do redrive_job(J) end
save_all(ARGV[2])
return { moved, #found, remaining }
