-- redrive: dead jobs of a queue get their attempts back and wait again, oldest first.
--@include keys, state
-- KEYS[1]    the queue's dead jobs (routes the script)
-- ARGV       prefix, maxlen, E, Q, most jobs to look at, how many to skip, buried from ms, buried until
--            ms, task ('': any), text in the error ('': any), then job ids (J); none: all
-- Returns    {how many were redriven, how many were looked at}
local E, Q, most = ARGV[3], ARGV[4], tonumber(ARGV[5])
local task, text = ARGV[9], ARGV[10]
local queue = queue_of(E, Q)

local function candidates()
  if #ARGV == 10 then
    return redis.call('ZRANGEBYSCORE', dead_key(E, Q), ARGV[7], ARGV[8], 'LIMIT', ARGV[6], most)
  end
  local found = {}
  for i = 11, #ARGV do
    if redis.call('ZSCORE', dead_key(E, Q), ARGV[i]) then found[#found + 1] = ARGV[i] end
  end
  return found
end

-- The second field of the body's header, see scripts.py.
local function task_of(EJ)
  return string.match(redis.call('GET', body_key(EJ)), '^[^\t]*\t([^\t\n]*)')
end

local function redrive(J)
  local job = job_key(E .. ':' .. J)
  local v = redis.call('HMGET', job, 'error', 'priority', 'size')
  if task ~= '' and task_of(E .. ':' .. J) ~= task then return 0 end
  if text ~= '' and not string.find(v[1] or '', text, 1, true) then return 0 end
  redis.call('ZREM', dead_key(E, Q), J)
  redis.call('HSET', job, 'attempts', 0)
  redis.call('HDEL', job, 'expires') -- it outlived its TTL; whoever redrives wants it run
  make_wait(queue, J, NOW, tonumber(v[2]), nil)
  queue.bytes = queue.bytes + tonumber(v[3])
  count(queue, 'redrive')
  return 1
end

local moved, found = 0, candidates()
for _, J in ipairs(found) do moved = moved + redrive(J) end
save_all(ARGV[2])
return { moved, #found }
