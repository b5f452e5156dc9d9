-- begin: record that a worker starts these jobs, which are at their last attempt. Otherwise that attempt does not
-- count: a job that no worker started is not buried (maintenance.lua).
--@flags allow-oom
--@include keys
-- KEYS[1]    meta of the shard (routes the script)
-- ARGV       prefix, maxlen, then for each job: E, J, lease
-- Returns    for each job 1 (the worker may start it) or 0 (lease lost)
local answers = {}
for i = 3, #ARGV, 3 do
  local key = job_key(ARGV[i] .. ':' .. ARGV[i + 1])
  local v = redis.call('HMGET', key, 'state', 'delivery')
  local held = v[1] == 'running' and v[2] == ARGV[i + 2]
  if held then redis.call('HDEL', key, 'unbegun') end
  answers[#answers + 1] = held and 1 or 0
end
return answers
