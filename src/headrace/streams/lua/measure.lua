-- What of a stream a group has yet to do.
--
-- The server's `lag` is believed only for a group that stands inside the stream, within what the stream holds, and for
-- more than what is counted anyway. It is nil after a deletion ahead of the group or a move of it; after the entries at
-- the group's position were trimmed it is a number, and wrong, until the group reads again; and it is what somebody
-- said who moved the group with ENTRIESREAD.
--@include ids
local COUNT_ALWAYS = 100
local PEL_SAMPLE = 100 -- pending entries, the oldest ones, whose idle time is looked at
local PAGE_BYTES, PAGE = 1024 * 1024, 500

local function find_group(stream, name)
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local group = to_map(flat)
    if group.name == name then return group end
  end
end

local function count_entry_bytes(entry)
  local size = 0
  for _, value in ipairs(entry and entry[2] or {}) do size = size + #value end
  return size
end

-- How many entries there are between two ids; nil if more than `bound`.
local function count_between(stream, from, to, page, bound)
  local found = 0
  while true do
    local entries = redis.call('XRANGE', stream, from, to, 'COUNT', page)
    found = found + #entries
    if found > bound then return nil end
    if #entries < page then return found end
    from = '(' .. entries[#entries][1]
  end
end

-- For a group that stands inside the stream. -1: unknown, there are more than `bound` on both sides of it.
local function count_undelivered(stream, info, position, lag, bound)
  local size = math.max(count_entry_bytes(info['first-entry']), count_entry_bytes(info['last-entry']), 1)
  local page = math.max(1, math.min(PAGE, math.floor(PAGE_BYTES / size)))
  local after, always_counted = '(' .. position, math.min(COUNT_ALWAYS, bound)
  local found = count_between(stream, after, '+', math.min(page, always_counted + 1), always_counted)
  if found then return found end
  if lag and lag > always_counted and lag < info.length then return lag end
  found = count_between(stream, after, '+', page, bound)
  if found then return found end
  local behind = count_between(stream, '-', position, page, bound)
  return behind and info.length - behind or -1
end

-- nil if there is no such group; else its numbers, and those of the stream that they follow from.
local function measure_group(stream, name, bound)
  local group = find_group(stream, name)
  if not group then return nil end
  local info = to_map(redis.call('XINFO', 'STREAM', stream))
  local position = group['last-delivered-id']
  local next_entry = redis.call('XRANGE', stream, '(' .. position, '+', 'COUNT', 1)[1]
  local first = info.length > 0 and info['first-entry'][1]
  local found = { pending = group.pending, next_id = next_entry and next_entry[1] or '', first_pending = '', idle = -1,
    added = info['entries-added'], read = group['entries-read'] or nil }
  -- How many it was given is known without a count at either end of the stream.
  if not found.read and position == '0-0' then found.read = 0 end
  if not found.read and not next_entry then found.read = found.added end
  if not next_entry then
    found.undelivered = 0
  elseif id_less_than(position, first) then
    found.undelivered = info.length
  elseif position == first then
    found.undelivered = info.length - 1
  else
    found.undelivered = count_undelivered(stream, info, position, group.lag, bound)
  end
  if group.pending > 0 then
    local oldest = redis.call('XPENDING', stream, name, '-', '+', PEL_SAMPLE)
    found.first_pending = oldest[1][1]
    for _, entry in ipairs(oldest) do found.idle = math.max(found.idle, entry[3]) end
  end
  return found
end
