-- requeue: return unfinished jobs of a worker that stops. Counted as reclaim (the lease ended without a result), but
-- the attempt does not count.
--@flags allow-oom
--@include leases, waiting, save
-- KEYS[1]    meta of the shard (routes the script)
-- ARGV       prefix, maxlen, then for each job: E, J, lease
-- Returns    for each job 1 (returned) or 0 (lease lost)
local answers = {}
for i = 3, #ARGV, 3 do
  local job = find_leased_job(ARGV[i], ARGV[i + 1], ARGV[i + 2])
  if job then
    end_lease(job)
    wait_again(job, job.due, 'reclaim', job.attempts - 1)
  end
  answers[#answers + 1] = job and 1 or 0
end
save_all(ARGV[2])
return answers
