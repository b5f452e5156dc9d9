-- nack: fail jobs: retry them after a delay, or bury them after their last attempt.
--@flags allow-oom
--@include leases, waiting, save
-- KEYS[1]    meta of the shard (routes the script)
-- ARGV       prefix, maxlen, then for each job: E, J, lease, delay ms, error
-- Returns    for each job 1 (will be retried), 2 (buried) or 0 (lease lost)
local function nack_job(E, J, lease, delay, failure)
  local job = find_leased_job(E, J, lease)
  if not job then return 0 end
  end_lease(job)
  redis.call('HSET', job_key(job.EJ), 'error', failure)
  if job.attempts >= job.max_attempts then
    bury_job(job)
    return 2
  end
  wait_again(job, NOW + delay, 'nack', job.attempts)
  return 1
end

local answers = {}
for i = 3, #ARGV, 5 do
  answers[#answers + 1] = nack_job(ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3]), ARGV[i + 4])
end
save_all(ARGV[2])
return answers
