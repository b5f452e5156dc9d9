-- publish: add entries. Those that every group is done with are trimmed above `maxlen`; no others ever are, and when
-- nothing more can be trimmed, a stream of `hard_maxlen` entries refuses.
--@include ids
-- KEYS[1]    the stream
-- ARGV       maxlen, hard, field, then a value for each entry
-- Returns    the ids; STREAMFULL, and nothing is written, if there is no room for all
local maxlen, hard_maxlen, FIRST = tonumber(ARGV[1]), tonumber(ARGV[2]), 4
local stream, new = KEYS[1], #ARGV - FIRST + 1
local length = redis.call('XLEN', stream)

-- The oldest entry that some group still needs, or is the last it was given. nil: no group has read yet.
local function find_oldest_needed()
  local oldest_needed
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local group = to_map(flat)
    local from = group['last-delivered-id']
    if group.pending > 0 then
      local first = redis.call('XPENDING', stream, group.name)[2]
      if id_less_than(first, from) then from = first end
    end
    if not oldest_needed or id_less_than(from, oldest_needed) then oldest_needed = from end
  end
  return oldest_needed
end

local excess = length + new - maxlen
if excess > 0 and length > 0 then
  local oldest_needed = find_oldest_needed()
  if oldest_needed and length + new > hard_maxlen then
    length = length - redis.call('XTRIM', stream, 'MINID', '=', oldest_needed)
  elseif oldest_needed then
    redis.call('XTRIM', stream, 'MINID', '~', oldest_needed, 'LIMIT', excess)
  end
end
if length + new > hard_maxlen then
  return redis.error_reply('STREAMFULL it holds ' .. length .. ' entries of ' .. ARGV[2])
end
local ids = {}
for i = FIRST, #ARGV do ids[#ids + 1] = redis.call('XADD', stream, '*', ARGV[3], ARGV[i]) end
return ids
