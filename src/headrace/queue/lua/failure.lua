-- End of a script that failed (valkey/scripts.py): `failure` is the error, `progress` has the queues it had loaded.
--
-- Lua does not roll back, so the queues that the script may have changed are listed for repair (repair.lua), with the
-- jobs that it was adding (J) or leasing (J, tab, lease token): these may be in no index, and no worker received them.
for _, queue in ipairs(progress.queues) do
  local before = redis.pcall('HGET', ARGV[1] .. 'repair', queue.name)
  local jobs = type(before) == 'string' and before or ''
  if #queue.in_flight > 0 then jobs = jobs .. table.concat(queue.in_flight, ':') .. ':' end
  redis.pcall('HSET', ARGV[1] .. 'repair', queue.name, jobs)
end
if type(failure) == 'table' then return failure end
-- An error of a command begins with its code; an error of Lua has none.
failure = tostring(failure)
return redis.error_reply(failure:match('^%u+ ') and failure or 'ERR ' .. failure)
