-- Depth of a group: its undelivered and pending entries.
--
-- The `lag` of the server is used only for a group whose position is inside the stream, if it is less than the length
-- of the stream and more than COUNT_ALWAYS. It is nil after a deletion ahead of the group or after XGROUP SETID; after
-- the entries at the position of the group were trimmed it is wrong until the group reads again; and with ENTRIESREAD
-- it is what the caller of XGROUP passed.
--@include ids, retry_consumer
local COUNT_ALWAYS = 100
local PEL_SAMPLE = 100 -- oldest pending entries whose idle time is read
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

-- Return the number of entries between two ids; nil: more than `bound`.
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

-- Return the undelivered entries of a group whose position is inside the stream; -1: unknown, because there are more
-- than `bound` entries before and after it.
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

-- Return the depth of a group and the counters of the stream; nil: there is no such group.
local function measure_group(stream, name, bound)
  local group = find_group(stream, name)
  if not group then return nil end
  local info = to_map(redis.call('XINFO', 'STREAM', stream))
  local position = group['last-delivered-id']
  local next_entry = redis.call('XRANGE', stream, '(' .. position, '+', 'COUNT', 1)[1]
  local first = info.length > 0 and info['first-entry'][1]
  local found = { pending = group.pending, next_id = next_entry and next_entry[1] or '', first_pending = '', idle = -1,
    added = info['entries-added'], read = group['entries-read'] or nil, length = info.length }
  -- At either end of the stream, the number of delivered entries is known without counting.
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
    for _, entry in ipairs(oldest) do
      if entry[2] ~= RETRY_CONSUMER then found.idle = math.max(found.idle, entry[3]) end
    end
  end
  return found
end
