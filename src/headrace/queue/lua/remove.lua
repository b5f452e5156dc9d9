-- Take a waiting job out for good. Needs state.lua.
local function remove_waiting(EJ, op)
  local E, J = EJ:match('^(.*):([^:]*)$')
  local v = redis.call('HMGET', job_key(EJ), 'state', 'Q', 'priority', 'size', 'detail')
  if v[1] ~= 'ready' and v[1] ~= 'scheduled' then -- a script failed that should have removed it
    redis.call('ZREM', EXPIRIES, EJ)
    return
  end
  local queue = queue_of(E, v[2])
  redis.call('DEL', job_key(EJ), body_key(EJ))
  if v[1] == 'ready' then
    remove_ready(queue, J, tonumber(v[3]), v[5])
  else -- at once: maintenance makes due jobs ready in the same script
    redis.call('ZREM', SCHEDULED, EJ)
    queue.warm_scheduled = queue.warm_scheduled - 1
  end
  redis.call('ZREM', EXPIRIES, EJ)
  queue.warm_bytes = queue.warm_bytes - tonumber(v[4])
  count(queue, op)
end
