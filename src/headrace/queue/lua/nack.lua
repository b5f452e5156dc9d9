-- nack: fail jobs: retry them after a delay, or bury them after their last attempt.
--@flags allow-oom
--@include leases, waiting, records, save
-- KEYS[1]    meta of the shard (routes the script)
-- ARGV       prefix, maxlen, number of jobs, for each job: E, J, lease, delay ms, error; then records of attempts, if
--            any (records.lua)
-- Returns    for each job 1 (will be retried), 2 (buried) or 0 (lease lost)
local last_job = 3 + 5 * ARGV[3]
local keep_record = find_records(last_job + 1)

local function nack_job(number, E, J, lease, delay, failure)
  local job = find_leased_job(E, J, lease)
  if not job then return 0 end
  end_lease(job)
  if keep_record then keep_record(number, job) end
  redis.call('HSET', job_key(job.EJ), 'error', failure)
  if job.attempts >= job.max_attempts then
    bury_job(job)
    return 2
  end
  wait_again(job, NOW + delay, 'nack', job.attempts)
  return 1
end

local answers = {}
for i = 4, last_job, 5 do
  answers[#answers + 1] = nack_job(#answers + 1, ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3]), ARGV[i + 4])
end
save_all(ARGV[2])
return answers
