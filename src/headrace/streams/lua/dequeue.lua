-- dequeue: deliver up to n entries: first those whose retry is due, then new ones.
--@flags allow-oom
--@include group, ids
-- KEYS, ARGV as in group.lua, then n
-- Returns    {entries as {id, fields, delivery, waited ms}, entries that were deleted from the stream before their
--            retry, id of the last entry ever added ('' if the stream may have more entries for the group), ms until
--            the next retry is due (-1: no entry waits for one), id of the last wake ('0-0': none)}
local n = tonumber(ARGV[3])
local entries, waits, deleted, last_id = {}, {}, 0, ''
local last_wake = redis.call('XREVRANGE', WAKE, '+', '-', 'COUNT', 1)[1]

local function add_entry(id, fields, delivery, since)
  local waited = math.max(NOW - since, 0)
  -- An id that is not a time does not show how long the entry waited.
  if since >= 1e12 then waits[#waits + 1] = format_int(waited) else waited = 0 end
  entries[#entries + 1] = { id, fields, delivery, waited }
end

local due = redis.call('ZRANGEBYSCORE', RETRIES, '-inf', format_int(NOW), 'WITHSCORES', 'LIMIT', 0, n)
for i = 1, #due, 2 do
  local id, found = due[i], find_pending(due[i])
  redis.call('ZREM', RETRIES, id)
  if found and found[2] == RETRY_CONSUMER then -- else it is done, or another consumer claimed it
    local entry = redis.call('XCLAIM', STREAM, GROUP, CONSUMER, 0, id)[1]
    if entry then
      add_entry(id, entry[2], found[4] + 1, tonumber(due[i + 1]))
    else
      end_deferral(id)
      deleted = deleted + 1
    end
  end
end
if #entries < n then
  local new = redis.call('XREADGROUP', 'GROUP', GROUP, CONSUMER, 'COUNT', n - #entries, 'STREAMS', STREAM, '>')
  for _, entry in ipairs(new and new[1][2] or {}) do
    add_entry(entry[1], entry[2], 1, tonumber(entry[1]:match('^%d+')))
    last_id = entry[1]
  end
end
add_count('dequeue', #entries)
add_count('gone', deleted)
record_samples('waits', waits)
if #entries < n and last_id == '' then
  last_id = to_map(redis.call('XINFO', 'STREAM', STREAM))['last-generated-id']
elseif #entries == n then
  last_id = ''
end
local next_due = find_next_retry()
return { entries, deleted, last_id, next_due < math.huge and math.max(0, math.ceil(next_due - NOW)) or -1,
  last_wake and last_wake[1] or '0-0' }
