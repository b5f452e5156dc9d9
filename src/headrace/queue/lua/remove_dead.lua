-- remove_dead: delete dead jobs of a queue, oldest first. For queues without PostgreSQL.
--@flags allow-oom
--@include queues, dead_filter, dead_bytes
-- KEYS[1]    dead jobs of the queue (routes the script)
-- ARGV       as for redrive
-- Returns    {removed, examined}; empty if there is no such queue
local E, Q = ARGV[3], ARGV[4]
if redis.call('EXISTS', queue_key(E, Q)) == 0 then return {} end
local queue = load_queue(E, Q)
local filter = read_dead_filter(E, Q)
local found, removed = find_dead_candidates(filter), 0
for _, J in ipairs(found) do
  local EJ = E .. ':' .. J
  local v = redis.call('HMGET', job_key(EJ), 'error', 'size', 'state')
  if not v[3] then -- a script failed before it removed it
    redis.call('ZREM', dead_key(E, Q), J)
  elseif v[3] == 'dead' and matches_dead_filter(filter, J, v[1]) then
    count_dead_job(queue, tonumber(v[2] or 0), -1)
    redis.call('DEL', job_key(EJ), body_key(EJ))
    redis.call('ZREM', dead_key(E, Q), J)
    removed = removed + 1
  end
end
save_dead_bytes(queue)
return { removed, #found }
