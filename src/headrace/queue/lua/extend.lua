-- extend: extend the leases of jobs that a worker still runs.
--@flags allow-oom
--@include keys, clock
-- KEYS[1]    meta of the shard (routes the script)
-- ARGV       prefix, maxlen, lease ms, then for each job: E, J, lease
-- Returns    for each job 1 (extended), 2 (extended, and to be cancelled) or 0 (lease lost)
local answers = {}
for i = 4, #ARGV, 3 do
  local EJ = ARGV[i] .. ':' .. ARGV[i + 1]
  local v = redis.call('HMGET', job_key(EJ), 'state', 'delivery', 'cancel')
  local held = v[1] == 'running' and v[2] == ARGV[i + 2]
  if held then redis.call('ZADD', LEASES, format_int(NOW + tonumber(ARGV[3])), EJ) end
  answers[#answers + 1] = held and (v[3] and 2 or 1) or 0
end
return answers
