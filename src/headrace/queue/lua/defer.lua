-- defer: give back jobs that a worker holds and cannot run now; they run after a delay. The attempt does not count. The
-- delay of a job that is deferred again, without another result in between, grows with the time since the first defer. A
-- defer with a fixed delay (the shortest is the longest) that never buries ends this, like another result.
--@flags allow-oom
--@include leases, waiting, missing_tasks, save
-- KEYS[1]    meta of the shard (routes the script)
-- ARGV       prefix, maxlen, then for each job: E, J, lease, shortest delay ms, longest delay ms, ms after which it is
--            buried, if its task, if any, was missing for as long (0: never), name of the task if the worker does not
--            have it ('': deferred for another reason), reason (the error of a buried job)
-- Returns    for each job 1 (deferred), 2 (buried) or 0 (lease lost)
local function defer_job(E, J, lease, shortest, longest, bury_after, missing_task, reason)
  local job = find_leased_job(E, J, lease)
  if not job then return 0 end
  local since = job.deferred_since or NOW
  local deferred_ms = NOW - since
  end_lease(job)
  -- A job may have been deferred long ago, before workers that have its task were gone for a moment. It is buried only if
  -- the task was missing for as long.
  local missing_since = missing_task ~= '' and record_missing_task(job.queue, missing_task) or since
  if bury_after > 0 and math.min(deferred_ms, NOW - missing_since) >= bury_after and not job.is_cancelled then
    redis.call('HSET', job_key(job.EJ), 'error', reason, 'attempts', job.attempts - 1)
    bury_job(job)
    return 2
  end
  local delay = math.max(shortest, math.min(deferred_ms, longest))
  local is_fixed = shortest == longest and bury_after == 0
  wait_again(job, NOW + delay, 'defer', job.attempts - 1, not is_fixed and since or nil)
  return 1
end

local answers = {}
for i = 3, #ARGV, 8 do
  answers[#answers + 1] = defer_job(ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4]),
    tonumber(ARGV[i + 5]), ARGV[i + 6], ARGV[i + 7])
end
save_all(ARGV[2])
return answers
