-- Recovery from scripts that failed between two writes (see the order of writes in save.lua).
--@include keys, clock

-- Request that maintenance repairs a queue (repair.lua).
local function mark_for_repair(name) redis.call('HSETNX', REPAIR, name, '') end

-- Add a job to the place that its state names, if it is not there, and mark its queue for repair. For a job that was
-- found in another place, because a script failed between two writes; the caller removes it from there. Does nothing if
-- there is no such job.
local function place_by_state(E, J, state)
  local EJ = E .. ':' .. J
  local v = redis.call('HMGET', job_key(EJ), 'Q', 'priority', 'due', 'expires')
  if not v[1] then return end
  if v[4] and (state == 'ready' or state == 'scheduled') then redis.call('ZADD', EXPIRIES, 'NX', v[4], EJ) end
  if state == 'ready' then
    local priority = tonumber(v[2])
    if priority ~= 0 then redis.call('ZADD', levels_key(E, v[1]), -priority, priority) end
    redis.call('ZADD', ready_key(E, v[1], priority), 'NX', v[3], J)
  elseif state == 'scheduled' then
    redis.call('ZADD', SCHEDULED, 'NX', v[3], EJ)
  elseif state == 'running' then
    redis.call('ZADD', LEASES, 'NX', format_int(NOW), EJ)
  elseif state == 'dead' then
    redis.call('ZADD', dead_key(E, v[1]), 'NX', format_int(NOW), J)
    redis.call('SADD', BURIED, E .. ':' .. v[1])
  end
  mark_for_repair(E .. ':' .. v[1])
end

-- Return whether a job whose body exists was added completely: it has a place, or it has ended and its id is reserved.
-- Otherwise the script that was adding it failed.
local function is_complete(EJ)
  local E, J = EJ:match('^(.*):([^:]*)$')
  local v = redis.call('HMGET', job_key(EJ), 'state', 'Q', 'priority')
  if v[1] == 'ready' then
    return redis.call('ZSCORE', ready_key(E, v[2], tonumber(v[3])), J) and true
  elseif v[1] == 'scheduled' then
    return redis.call('ZSCORE', SCHEDULED, EJ) and true
  elseif v[1] then
    return true
  end
  -- By length, because producers may lack permission to read bodies. The body of a job is longer than both.
  local length = redis.call('STRLEN', body_key(EJ))
  return length == 0 or length == #DEAD_IN_POSTGRES
end
