-- list_dead: read a page of the dead jobs of a queue, oldest first. The page ends early with the job whose payload
-- reaches the byte limit, because the server builds a reply as a whole. Removes what failed scripts left of jobs that
-- PostgreSQL has stored.
--@include keys
-- KEYS[1]    dead jobs of the queue (routes the script)
-- ARGV       prefix, maxlen, E, Q, most jobs, most payload bytes
-- Returns    for each job {J, buried ms, body, enqueued ms, priority, attempts, max attempts, payload bytes, error}
local found = redis.call('ZRANGE', KEYS[1], 0, tonumber(ARGV[5]) - 1, 'WITHSCORES')
local answers, bytes = {}, 0
for i = 1, #found, 2 do
  local EJ = ARGV[3] .. ':' .. found[i]
  local v = redis.call('HMGET', job_key(EJ), 'enqueued', 'priority', 'attempts', 'max_attempts', 'size', 'error',
    'state')
  local body = redis.call('GET', body_key(EJ))
  if not v[7] or body == DEAD_IN_POSTGRES then -- PostgreSQL has it: a script failed before it removed it
    redis.call('DEL', job_key(EJ))
    redis.call('ZREM', KEYS[1], found[i])
  elseif v[7] == 'dead' then -- else it was redriven, and repair removes it
    answers[#answers + 1] = { found[i], found[i + 1], body or '', v[1], v[2], v[3], v[4], v[5], v[6] or '' }
    bytes = bytes + tonumber(v[5])
    if bytes >= tonumber(ARGV[6]) then break end
  end
end
if #found == 0 then redis.call('SREM', BURIED, ARGV[3] .. ':' .. ARGV[4]) end
return answers
