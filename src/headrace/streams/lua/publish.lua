-- publish: add entries. Those that every group is done with are trimmed above `maxlen`; no others ever are, and when
-- nothing more can be trimmed, a stream of `hard` entries refuses.
--@include ids
-- KEYS[1]    the stream
-- ARGV       maxlen, hard, field, then a value for each entry
-- Returns    the ids; STREAMFULL, and nothing is written, if there is no room for all
local maxlen, hard, FIRST = tonumber(ARGV[1]), tonumber(ARGV[2]), 4
local stream, new = KEYS[1], #ARGV - FIRST + 1
local length = redis.call('XLEN', stream)

-- The oldest entry that some group still needs, or is the last it was given. nil: no group has read yet.
local function needed_from()
  local low
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local group = fields_of(flat)
    local from = group['last-delivered-id']
    if group.pending > 0 then
      local first = redis.call('XPENDING', stream, group.name)[2]
      if less(first, from) then from = first end
    end
    if not low or less(from, low) then low = from end
  end
  return low
end

local excess = length + new - maxlen
if excess > 0 and length > 0 then
  local low = needed_from()
  if low and length + new > hard then
    length = length - redis.call('XTRIM', stream, 'MINID', '=', low)
  elseif low then
    redis.call('XTRIM', stream, 'MINID', '~', low, 'LIMIT', excess)
  end
end
if length + new > hard then
  return redis.error_reply('STREAMFULL it holds ' .. length .. ' entries of ' .. ARGV[2])
end
local ids = {}
for i = FIRST, #ARGV do ids[#ids + 1] = redis.call('XADD', stream, '*', ARGV[3], ARGV[i]) end
return ids
