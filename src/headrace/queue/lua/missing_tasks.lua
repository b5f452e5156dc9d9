-- Missing tasks: which tasks of which queues workers were given without having them.
--@include keys, clock
local MAX_MISSING = 300
local MISSING_KEPT_MS = 600000
local MISSING_EPISODE_MS = 120000 -- after a longer time without a deferral, `since` and the count start again
local is_missing_full = false -- found by this script

-- Drop old entries; return how many are left.
local function drop_old_missing_tasks()
  local entries, left = redis.pcall('HGETALL', MISSING), 0
  for i = 1, #entries, 2 do
    local last = tonumber(entries[i + 1]:match('^%d+ (%d+) ') or nil)
    if last and NOW - last <= MISSING_KEPT_MS then
      left = left + 1
    else
      redis.pcall('HDEL', MISSING, entries[i])
    end
  end
  return left
end

-- Record that a worker deferred a job because it does not have its task: `E:Q`, tab, task → first and last time (ms),
-- deferrals. Return the first time (nil: not recorded). Errors are ignored: a job that was deferred must not be reported as
-- failed because of its record.
local function record_missing_task(queue, task)
  local field = queue.name .. '\t' .. task
  local value = redis.pcall('HGET', MISSING, field)
  local since, last, count = (type(value) == 'string' and value or ''):match('^(%d+) (%d+) (%d+)$')
  if not since then
    is_missing_full = is_missing_full or (redis.pcall('HLEN', MISSING) == MAX_MISSING
      and drop_old_missing_tasks() >= MAX_MISSING)
    if is_missing_full then return nil end
  end
  local now = format_int(NOW)
  if not since or NOW - tonumber(last) > MISSING_EPISODE_MS then since, count = now, 0 end
  redis.pcall('HSET', MISSING, field, since .. ' ' .. now .. ' ' .. format_int(tonumber(count) + 1))
  return tonumber(since)
end
