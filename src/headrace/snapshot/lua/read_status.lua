-- read_status: read all that a scrape needs while nothing has changed.
--@flags no-writes
-- KEYS       current, attempts
-- Returns    {current, server time in ms, {field, value, …} of attempts}
local time = redis.call('TIME')
return {redis.call('GET', KEYS[1]) or '', time[1] * 1000 + math.floor(time[2] / 1000), redis.call('HGETALL', KEYS[2])}
