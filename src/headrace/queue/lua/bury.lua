-- bury: make failed jobs dead, without a retry.
--@flags allow-oom
--@include leases, records, save
-- KEYS[1]    meta of the shard (routes the script)
-- ARGV       prefix, maxlen, number of jobs, for each job: E, J, lease, error; then records of attempts, if any
--            (records.lua)
-- Returns    for each job 1 (buried) or 0 (lease lost)
local last_job = 3 + 4 * ARGV[3]
local answers, keep_record = {}, find_records(last_job + 1)
for i = 4, last_job, 4 do
  local job = find_leased_job(ARGV[i], ARGV[i + 1], ARGV[i + 2])
  if job then
    end_lease(job)
    if keep_record then keep_record(#answers + 1, job) end
    redis.call('HSET', job_key(job.EJ), 'error', ARGV[i + 3])
    bury_job(job)
  end
  answers[#answers + 1] = job and 1 or 0
end
save_all(ARGV[2])
return answers
