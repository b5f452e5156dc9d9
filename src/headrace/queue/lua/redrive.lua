-- redrive: dead jobs of a queue get their attempts back and wait again, oldest first, as many as caps and quotas let in.
--@include dead_filter, dead_bytes, recovery, quota_checks, shard_capacity, save
-- KEYS[1]    the queue's dead jobs (routes the script)
-- ARGV       prefix, maxlen, E, Q, most jobs to look at, how many to skip, buried from ms, buried until
--            ms, task ('': any), text in the error ('': any), most jobs and bytes of the warm tier, most bytes of the
--            shard's (0: no cap), then job ids (J); none: all
-- Returns    {how many were redriven, how many were looked at, how many of these match but found no room}; empty if
--            there is no such queue
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
  -- None passes one that found no room.
  local size = tonumber(v[3])
  if remaining > 0 or not job_fits(queue, size, max_items, max_bytes) or not job_fits_shard(queue, size, shard_max)
      or find_exceeded_quota(queue, 1, size) then
    remaining = remaining + 1
    return
  end
  queue.in_flight[#queue.in_flight + 1] = J
  remove_on_save(dead_key(E, Q), J)
  local at = NOW + moved / 4096 -- they keep their order, as the jobs of one enqueue do
  redis.call('HSET', job, 'state', 'ready', 'attempts', 0, 'due', format_float(at))
  redis.call('HDEL', job, 'expires') -- it outlived its TTL; whoever redrives wants it run
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
