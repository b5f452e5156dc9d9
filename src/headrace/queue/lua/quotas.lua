-- The quotas that are in force for an environment.
--@include keys, shard

-- The quotas of operators, as words in one field (queue/quotas.py): `quota` of an environment ('=': the default, '-': none),
-- `quota` of META (the defaults), `share` of an environment (its share of quotas of its project and organisation).
local QUOTAS = { 'warm_jobs', 'warm_bytes', 'queues', 'enqueue_rate', 'enqueue_burst', 'running' }

-- The quotas in force for an environment, by name; nil where there is none. A quota of its project or organisation that it
-- has no share of yet is 0. Shares come each second (cold/shares.py).
local function read_quotas(E, own, share)
  local numbers = shard_numbers()
  local found, is_share, own_rate, default = {}, {}, nil, (numbers.quota or ''):gmatch('%S+')
  own = (own or ''):gmatch('%S+')
  local shares = (share or ''):gmatch('%S+')
  for _, name in ipairs(QUOTAS) do
    local usual, word, part = default(), own(), tonumber(shares() or nil)
    found[name] = tonumber((not word or word == '=') and usual or word or nil)
    if name == 'enqueue_burst' and part and not found[name] and own_rate then found[name] = math.max(1, own_rate) end
    if name == 'enqueue_rate' then own_rate = found[name] end
    if part and (not found[name] or part < found[name]) then found[name], is_share[name] = part, true end
  end
  if numbers.shared and not share then
    local org, project = E:match('^([^:]*):([^:]*)')
    for _, names in ipairs(redis.call('HMGET', META, 'shared:' .. org, 'shared:' .. org .. ':' .. project)) do
      for name in (names or ''):gmatch('%S+') do found[name], is_share[name] = 0, true end
    end
  end
  found.is_share = is_share
  return found
end
