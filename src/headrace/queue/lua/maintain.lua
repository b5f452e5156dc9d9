-- maintain: run the periodic work of a shard, for one maintenance owner at a time: tick, expire, reclaim and release
-- jobs, delete old records of attempts, check indexes. The owner renews its ownership with each successful call; when it stops calling, the first other
-- caller after the end of its ownership becomes the owner. Two owners at once do no harm: ownership only saves work.
--@flags allow-oom
--@include ticks, maintenance, records, index_checks, save
-- KEYS[1]    meta of the shard (routes the script)
-- ARGV       prefix, maxlen, caller, ownership ms, most jobs of each kind in this call, tick period ms
-- Returns    {1 if the caller is the owner, else 0; ms until the next call (0: at once); expired; reclaimed; released;
--            1 if it ticked; queues that need repair (repair.lua); quarantined entries}
local ownership_ms = tonumber(ARGV[4])
local v = redis.call('HMGET', META, 'maintainer', 'maintainer_until', 'maintainer_ms')
local left_ms = tonumber(v[2] or nil) and tonumber(v[2]) - NOW or 0
-- An end farther away than the ownership lasts means that the clock was set back. The duration that the owner wrote
-- counts, because callers may use different ones; twice that, so that a small clock adjustment does not change the
-- owner.
local longest_ms = 2 * math.max(ownership_ms, tonumber(v[3] or nil) or 0)
if v[1] ~= ARGV[3] and left_ms > 0 and left_ms <= longest_ms then
  return { 0, math.ceil(math.min(left_ms, ownership_ms)), 0, 0, 0, 0, 0, 0 }
end

-- First, so that the shard ticks even if a job makes the rest fail.
local ticked, next_call_ms = emit_tick(ARGV[2], tonumber(ARGV[6]))
local expired = expire_overdue_jobs(ARGV[5])
local reclaimed = reclaim_ended_leases(ARGV[5])
local released = release_due_jobs(ARGV[5])
local drops_at_most = math.min(100, ARGV[5]) -- lists of records may be large
local dropped = open_records().drop_old(drops_at_most)
save_all(ARGV[2])
check_some_queues()
if redis.call('EXISTS', ENVS) == 1 then redis.pcall('ZADD', WAKE, 0, '0') end -- its worker may have died

if dropped == drops_at_most then next_call_ms = 0 end
-- Last, so that a caller whose work fails does not become the owner.
for _, index in ipairs({ SCHEDULED, LEASES, EXPIRIES }) do
  local head = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')[2]
  if head then next_call_ms = math.min(next_call_ms, tonumber(head) - NOW) end
end
-- The owner renews its ownership in time, and is woken by DUE for what becomes due sooner.
next_call_ms = math.max(0, math.ceil(math.min(next_call_ms, ownership_ms / 2)))
redis.pcall('DEL', DUE)
redis.call('HSET', META, 'maintainer', ARGV[3], 'maintainer_until', format_int(NOW + ownership_ms),
  'maintainer_ms', format_int(ownership_ms), 'maintain_at', format_int(NOW + next_call_ms))
return { 1, next_call_ms, expired, reclaimed, released, ticked, redis.call('HLEN', REPAIR), quarantined }
