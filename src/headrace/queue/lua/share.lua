-- share: how much of the quotas of its project and organisation an environment may use from now on. It keeps what it uses now:
-- nothing is taken away that is in use. More jobs than its share may run for a while; then none follow those that end.
--@flags allow-oom
--@include env_usage, save
-- KEYS[1]    the hash of the environment (routes the script)
-- ARGV       prefix, maxlen, E, round, a word for each of QUOTAS: a number or '-' (it shares no such quota)
-- Returns    {1, the words, each at least what is used}; {0} if a later round was here before
local E, round = ARGV[3], tonumber(ARGV[4])
local v = redis.call('HMGET', KEYS[1], 'depth', 'running', 'bytes', 'jobs', 'counted', 'share', 'share_indexed',
  'share_round')
local last_round = tonumber(v[8] or (v[6] or ''):match('(%d+)$') or 0) -- 0.2.0 kept it in `share` alone
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
-- A share of `running` is a limit of the environment: its place in the indexes may be another one. What is indexed is noted
-- last, so a script that fails before that is followed by one that does it.
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
