-- Runs when a script has failed: `failure` is why, `progress` what it had begun. Lua does not roll back, so maintenance is
-- asked to count again the queues that it may have changed (repair.lua). The jobs that it was adding (J), or leasing (J, tab,
-- token), are named: no index may hold them yet, and no worker got them.
for _, queue in ipairs(progress.queues) do
  local before = redis.pcall('HGET', ARGV[1] .. 'repair', queue.name)
  local jobs = type(before) == 'string' and before or ''
  if #queue.in_flight > 0 then jobs = jobs .. table.concat(queue.in_flight, ':') .. ':' end
  redis.pcall('HSET', ARGV[1] .. 'repair', queue.name, jobs)
end
if type(failure) == 'table' then return failure end
-- An error of a command begins with its code; one of Lua itself has none.
failure = tostring(failure)
return redis.error_reply(failure:match('^%u+ ') and failure or 'ERR ' .. failure)
