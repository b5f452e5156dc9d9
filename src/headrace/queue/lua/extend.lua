-- extend: a worker still runs these jobs; their leases end later.
--@include keys, state
-- KEYS[1]    the shard's meta (routes the script)
-- ARGV       prefix, maxlen, lease ms, then for each job: E, J, lease
-- Returns    for each job 1 (extended) or 0 (lease lost)
local answers = {}
for i = 4, #ARGV, 3 do
  local EJ = ARGV[i] .. ':' .. ARGV[i + 1]
  local held = leased_queue(EJ, ARGV[i + 2]) ~= nil
  if held then redis.call('ZADD', LEASES, whole(NOW + tonumber(ARGV[3])), EJ) end
  answers[#answers + 1] = held and 1 or 0
end
return answers
