-- defer: give back entries that a worker holds and cannot run now; they are delivered again after a delay. The delivery
-- does not count. The delay of an entry that is deferred again, without another result in between, grows with the time
-- since the first defer.
--@flags allow-oom
--@include dead_letters
-- KEYS, ARGV as in group.lua, then for each entry: id, delivery, shortest delay ms, longest delay ms, ms after which it is
--            buried (0: never), reason
-- Returns    for each entry 1 (deferred), 2 (buried) or 0 (lost)
local KEPT_MS = 31 * 86400000 -- workers of older releases do not call `end_deferral`
local answers, deferred, buried, deleted = {}, 0, 0, 0

local function defer_entry(id, delivery, shortest, longest, bury_after, reason)
  if not is_held(id, delivery) then return 0 end
  local since = tonumber(redis.call('ZSCORE', DEFERRED, id) or NOW)
  if bury_after > 0 and NOW - since >= bury_after then
    bury_entry(id, delivery - 1, reason)
    buried = buried + 1
    return 2
  end
  redis.call('ZADD', DEFERRED, 'NX', format_int(since), id)
  local delay = math.max(shortest, math.min(NOW - since, longest))
  if schedule_retry(id, NOW + delay, delivery - 1) then
    deferred = deferred + 1
  else -- deleted from the stream
    redis.call('ZREM', DEFERRED, id)
    deleted = deleted + 1
  end
  return 1
end

for i = 3, #ARGV, 6 do
  answers[#answers + 1] = defer_entry(ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]),
    tonumber(ARGV[i + 4]), ARGV[i + 5])
end
redis.call('ZREMRANGEBYSCORE', DEFERRED, '-inf', format_int(NOW - KEPT_MS))
add_count('defer', deferred)
add_count('bury', buried)
add_count('gone', deleted)
wake_idle_workers()
return answers
