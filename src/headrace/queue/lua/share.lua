-- share: set the share of the quotas of its project and organisation that an environment may use. A share is at least
-- what the environment uses now, except that of `running`: more jobs may run until enough of them have ended.
--@flags allow-oom
--@include env_usage, save
-- KEYS[1]    hash of the environment (routes the script)
-- ARGV       prefix, maxlen, E, round, a word for each of QUOTAS: a number, or '-' (it shares no such quota)
-- Returns    {1, the words, each at least what is used}; {0} if a later round was applied already
local E, round = ARGV[3], tonumber(ARGV[4])
local v = redis.call('HMGET', KEYS[1], 'depth', 'running', 'bytes', 'jobs', 'counted', 'share', 'share_indexed',
  'share_round')
local last_round = tonumber(v[8] or (v[6] or ''):match('(%d+)$') or 0) -- release 0.2.0 has it only in `share`
if last_round > round then return { 0 } end
local env = { E = E, exists = v[1] ~= false, bytes = tonumber(v[3] or nil), jobs = tonumber(v[4] or nil),
  counted_at = tonumber(v[5] or nil) }
if not env.exists then env.bytes, env.jobs = 0, 0 end
refresh_env_usage(env)
local used = { warm_jobs = env.jobs, warm_bytes = env.bytes, queues = redis.call('SCARD', env_names_key(E)),
  running = tonumber(v[2] or 0) }
local words, counted, has_share = {}, {}, false
for i, name in ipairs(QUOTAS) do
  local wanted = tonumber(ARGV[4 + i])
  counted[i] = wanted and format_int(math.max(wanted, used[name] or 0)) or '-'
  words[i] = wanted and name == 'running' and format_int(wanted) or counted[i]
  has_share = has_share or wanted ~= nil
end
redis.call('HSET', KEYS[1], 'share_round', format_int(round))
if has_share then
  redis.call('HSET', KEYS[1], 'share', table.concat(words, ' ') .. ' ' .. format_int(round))
else
  redis.call('HDEL', KEYS[1], 'share')
end
-- The share of `running` is a limit of the environment, so its queues are indexed again if it changed. `share_indexed`
-- is written last: if the script fails before that, the next one repeats it.
local running = words[#QUOTAS]
if (v[7] or '-') ~= running then
  local names = redis.call('SMEMBERS', env_names_key(E))
  if #names > 0 then
    load_env(E).was_blocked = true
    for _, Q in ipairs(names) do load_queue(E, Q) end
    save_all(ARGV[2])
  end
  redis.call('HSET', KEYS[1], 'share_indexed', running)
end
return { 1, unpack(counted) }
