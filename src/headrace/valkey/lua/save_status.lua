-- save_status: store the status of a process and the time by the server's clock.
--@flags allow-oom
-- KEYS       status
-- ARGV       version of the format, status (JSON), ms to keep it
-- Returns    1
local time = redis.call('TIME')
local at = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'at', at, 'status', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
