-- publish: add entries to a stream. Above maxlen, entries that every group has finished are trimmed, and no others; if
-- nothing can be trimmed, a stream of hard maxlen entries refuses.
--@include ids
-- KEYS[1]    stream
-- ARGV       maxlen, hard maxlen, field, then a value for each entry
-- Returns    the ids
-- Errors     STREAMFULL: there is no room for all entries; nothing is added
local maxlen, hard_maxlen, FIRST = tonumber(ARGV[1]), tonumber(ARGV[2]), 4
local stream, new = KEYS[1], #ARGV - FIRST + 1
local length = redis.call('XLEN', stream)

-- Return the oldest id that a group still needs: its first pending entry, or the last one delivered to it. nil: there
-- is no group.
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
