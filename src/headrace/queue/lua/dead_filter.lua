-- Dead jobs of a queue that match a filter.
--@include keys

-- Read the filter from ARGV, as redrive describes it.
local function read_dead_filter(E, Q)
  local filter = { E = E, Q = Q, limit = ARGV[5], skip = ARGV[6], buried_from = ARGV[7], buried_until = ARGV[8],
    task = ARGV[9], error_text = ARGV[10], ids = {} }
  for i = 14, #ARGV do filter.ids[#filter.ids + 1] = ARGV[i] end
  return filter
end

-- Return the job ids that match by id and time.
local function find_dead_candidates(filter)
  local key = dead_key(filter.E, filter.Q)
  if #filter.ids == 0 then
    return redis.call('ZRANGEBYSCORE', key, filter.buried_from, filter.buried_until, 'LIMIT', filter.skip, filter.limit)
  end
  local from_ms, until_ms = tonumber(filter.buried_from) or -math.huge, tonumber(filter.buried_until) or math.huge
  local found, seen = {}, {}
  for _, J in ipairs(filter.ids) do
    local at = tonumber(redis.call('ZSCORE', key, J) or nil)
    if at and at >= from_ms and at <= until_ms and not seen[J] then
      found[#found + 1] = J
      seen[J] = true
    end
  end
  return found
end

-- Return whether a dead job matches by task and error. The task is the second field of the header of its body.
local function matches_dead_filter(filter, J, failure)
  if filter.error_text ~= '' and not string.find(failure or '', filter.error_text, 1, true) then return false end
  if filter.task == '' then return true end
  return string.match(redis.call('GET', body_key(filter.E .. ':' .. J)) or '', '^[^\t]*\t([^\t\n]*)') == filter.task
end
