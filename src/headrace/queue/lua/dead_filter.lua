-- Dead jobs of one queue that match a filter.
--@include keys

-- The filter as it is in ARGV: most jobs to look at, how many to skip, buried from ms, buried until ms, task ('': any), text
-- in the error ('': any), three caps, then job ids; none: all.
local function dead_filter(E, Q)
  local filter = { E = E, Q = Q, most = ARGV[5], skip = ARGV[6], since = ARGV[7], till = ARGV[8], task = ARGV[9],
    text = ARGV[10], ids = {} }
  for i = 14, #ARGV do filter.ids[#filter.ids + 1] = ARGV[i] end
  return filter
end

local function dead_candidates(filter)
  local key = dead_key(filter.E, filter.Q)
  if #filter.ids == 0 then
    return redis.call('ZRANGEBYSCORE', key, filter.since, filter.till, 'LIMIT', filter.skip, filter.most)
  end
  local since, till = tonumber(filter.since) or -math.huge, tonumber(filter.till) or math.huge
  local found, seen = {}, {}
  for _, J in ipairs(filter.ids) do
    local at = tonumber(redis.call('ZSCORE', key, J) or nil)
    if at and at >= since and at <= till and not seen[J] then
      found[#found + 1] = J
      seen[J] = true
    end
  end
  return found
end

-- Whether a dead job has the task and the text in its error. The task is the second field of the body's header.
local function dead_matches(filter, J, failure)
  if filter.text ~= '' and not string.find(failure or '', filter.text, 1, true) then return false end
  if filter.task == '' then return true end
  return string.match(redis.call('GET', body_key(filter.E .. ':' .. J)) or '', '^[^\t]*\t([^\t\n]*)') == filter.task
end
