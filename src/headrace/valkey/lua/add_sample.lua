-- add_sample: put a sample at the front of a list, unless the newest one is recent.
--@flags allow-oom
-- KEYS       samples, newest first: each is the time by the server's clock (ms), a space, and the sample
-- ARGV       sample, minimum interval in ms, maximum number of samples, ms to keep the list
-- Returns    1 if the sample was added, otherwise 0
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local newest = redis.call('LINDEX', KEYS[1], 0)
local at = newest and tonumber(string.match(newest, '^%d+'))
if at and at <= now and now - at < tonumber(ARGV[2]) then return 0 end
redis.call('LPUSH', KEYS[1], string.format('%.0f ', now) .. ARGV[1])
redis.call('LTRIM', KEYS[1], 0, ARGV[3] - 1)
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1
