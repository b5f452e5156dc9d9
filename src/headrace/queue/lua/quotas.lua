-- Quotas in force for an environment.
--@include keys, shard

-- The order of the words in the fields that hold quotas (queue/quotas.py): `quota` of an environment ('=': the default,
-- '-': none), `quota` of META (the defaults), `share` of an environment (its share of the quotas of its project and
-- organisation).
local QUOTAS = { 'warm_jobs', 'warm_bytes', 'queues', 'enqueue_rate', 'enqueue_burst', 'running' }

-- Return the quotas in force, by name (nil: none), and `is_share`: the names of those that are shares. `own` and
-- `share` are fields of the environment. A quota of the project or organisation counts as 0 until the environment has a
-- share of it; shares are renewed every second (cold/shares.py).
local function read_quotas(E, own, share)
  local shard_state = load_shard()
  local quotas, is_share, rate_before_share, next_default = {}, {}, nil, (shard_state.quota or ''):gmatch('%S+')
  own = (own or ''):gmatch('%S+')
  local shares = (share or ''):gmatch('%S+')
  for _, name in ipairs(QUOTAS) do
    local default_word, own_word, share_word = next_default(), own(), tonumber(shares() or nil)
    quotas[name] = tonumber((not own_word or own_word == '=') and default_word or own_word or nil)
    if name == 'enqueue_burst' and share_word and not quotas[name] and rate_before_share then
      quotas[name] = math.max(1, rate_before_share)
    end
    if name == 'enqueue_rate' then rate_before_share = quotas[name] end
    if share_word and (not quotas[name] or share_word < quotas[name]) then
      quotas[name], is_share[name] = share_word, true
    end
  end
  if shard_state.shared and not share then
    local org, project = E:match('^([^:]*):([^:]*)')
    for _, names in ipairs(redis.call('HMGET', META, 'shared:' .. org, 'shared:' .. org .. ':' .. project)) do
      for name in (names or ''):gmatch('%S+') do quotas[name], is_share[name] = 0, true end
    end
  end
  quotas.is_share = is_share
  return quotas
end
