-- extend: extend the leases of jobs that a worker still runs, and store the progress that their tasks report.
--@flags allow-oom
--@include keys, clock
-- KEYS[1]    meta of the shard (routes the script)
-- ARGV       prefix, maxlen, lease ms, number of jobs, for each job: E, J, lease; then for each job with new progress:
--            its number, text
-- Returns    for each job 1 (extended), 2 (extended, and to be cancelled) or 0 (lease lost)
local last_job = 4 + 3 * ARGV[4]
local answers = {}
for i = 5, last_job, 3 do
  local EJ = ARGV[i] .. ':' .. ARGV[i + 1]
  local v = redis.call('HMGET', job_key(EJ), 'state', 'delivery', 'cancel')
  local held = v[1] == 'running' and v[2] == ARGV[i + 2]
  if held then redis.call('ZADD', LEASES, format_int(NOW + tonumber(ARGV[3])), EJ) end
  answers[#answers + 1] = held and (v[3] and 2 or 1) or 0
end
-- With the lease, because the text is not removed when the job waits again.
for i = last_job + 1, #ARGV, 2 do
  local number = tonumber(ARGV[i])
  local first = 2 + 3 * number
  if answers[number] > 0 then
    redis.call('HSET', job_key(ARGV[first] .. ':' .. ARGV[first + 1]), 'progress', ARGV[first + 2] .. '\n' .. ARGV[i + 1])
  end
end
return answers
