-- Quarantine of invalid index entries, so that they do not stop the others.
--@include keys, clock, places, recovery

local MAX_QUARANTINED = 1000
local quarantined = 0

-- Move an entry from an index to QUARANTINE, with the reason. The data of its job stays, for inspection.
local function quarantine(key, member, reason)
  redis.call('ZADD', QUARANTINE, format_int(NOW), key:sub(#PREFIX + 1) .. ' ' .. member .. ': ' .. reason)
  redis.call('ZREMRANGEBYRANK', QUARANTINE, 0, -MAX_QUARANTINED - 1)
  redis.call('HINCRBY', META, 'quarantined', 1)
  remove_on_save(key, member)
  quarantined = quarantined + 1
end

local CHECKED_FIELDS = { 'Q', 'size', 'priority', 'attempts', 'max_attempts', 'due' }

-- Return why an entry is invalid, and its queue if it is known; nil: it is valid, or there is no such job.
local function find_problem(EJ)
  local E, J = EJ:match('^(.*):([^:]*)$')
  if not E or J == '' then return 'it does not name a job' end
  local v = redis.pcall('HMGET', job_key(EJ), 'state', unpack(CHECKED_FIELDS))
  if v.err then
    if not v.err:find('WRONGTYPE', 1, true) then error(v) end -- not a problem of the entry
    return 'its job is not a hash'
  end
  if not v[1] then return nil end
  if not v[2] then return 'its job names no queue' end
  local name = E .. ':' .. v[2]
  if redis.call('EXISTS', queue_key(E, v[2])) == 0 then return 'its queue is unknown' end
  for i = 2, #CHECKED_FIELDS do
    if not tonumber(v[i + 1] or nil) then return 'the ' .. CHECKED_FIELDS[i] .. ' of its job is not a number', name end
  end
  return nil
end

-- Return whether an entry of an index is valid; quarantine it if not.
local function is_valid_entry(key, EJ)
  local problem, name = find_problem(EJ)
  if not problem then return true end
  quarantine(key, EJ, problem)
  if name then mark_for_repair(name) end
  return false
end
