-- dequeue: hold up to n entries: those that may be tried again, then new ones.
--@flags allow-oom
--@include group
-- KEYS, ARGV as in group.lua, then n
-- Returns    {entries as {id, fields, delivery, waited ms}, how many were gone when their time came}
local n = tonumber(ARGV[3])
local taken, waits, gone = {}, {}, 0

local function hold(id, fields, delivery, since)
  local waited = math.max(NOW - since, 0)
  if since >= 1e12 then waits[#waits + 1] = whole(waited) else waited = 0 end -- an id that is no time tells nothing
  taken[#taken + 1] = { id, fields, delivery, waited }
end

local due = redis.call('ZRANGEBYSCORE', RETRIES, '-inf', whole(NOW), 'WITHSCORES', 'LIMIT', 0, n)
for i = 1, #due, 2 do
  local id, found = due[i], pending(due[i])
  redis.call('ZREM', RETRIES, id)
  if found and found[2] == WAITING then -- else it is done, or somebody claimed it
    local entry = redis.call('XCLAIM', STREAM, GROUP, ME, 0, id)[1]
    if entry then hold(id, entry[2], found[4] + 1, tonumber(due[i + 1])) else gone = gone + 1 end
  end
end
if #taken < n then
  local new = redis.call('XREADGROUP', 'GROUP', GROUP, ME, 'COUNT', n - #taken, 'STREAMS', STREAM, '>')
  for _, entry in ipairs(new and new[1][2] or {}) do
    hold(entry[1], entry[2], 1, tonumber(entry[1]:match('^%d+')))
  end
end
count('dequeue', #taken)
count('gone', gone)
sample('waits', waits)
return { taken, gone }
