-- begin_refresh: take or renew the lease, and assign a version number. Of several refreshes the one with the highest
-- number is served (see switch).
--@flags allow-oom
-- KEYS       lease, number, current, versions
-- ARGV       owner, lease ms
-- Returns    {number, server time in ms, ''}, or {0, server time in ms, holder of the lease}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return {0, now, holder} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
-- Higher than the served and the kept versions: the key of the number may have been deleted, and the others not.
local current = tonumber(string.sub(redis.call('GET', KEYS[3]) or '', 2)) or 0
local kept = tonumber(redis.call('ZRANGE', KEYS[4], 0, 0, 'REV', 'WITHSCORES')[2]) or 0
local number = math.max(tonumber(redis.call('GET', KEYS[2])) or 0, current, kept) + 1
redis.call('SET', KEYS[2], string.format('%.0f', number))
return {number, now, ''}
