-- configure: change settings of a queue or an environment (pause, close, limits, caps, quotas).
--@include save
-- KEYS[1]    hash of the queue or environment (routes the script)
-- ARGV       prefix, maxlen, E, Q ('': the environment), then pairs of field and value ('': delete the field)
-- Returns    1, or 0 if there is no such queue
local E, Q = ARGV[3], ARGV[4]
if Q ~= '' and redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
if #ARGV == 4 then return 1 end
for i = 5, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', KEYS[1], ARGV[i])
  else
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  end
end
-- A limit of the environment applies to each of its queues, so all of them are indexed again.
local names = Q ~= '' and { Q } or redis.call('SMEMBERS', env_names_key(E))
load_env(E).was_blocked = true
for _, name in ipairs(names) do load_queue(E, name).resync = true end
save_all(ARGV[2])
return 1
