-- ack: jobs are done. A result from a lease that is no longer held is refused, not applied.
--@flags allow-oom
--@include leases, save
-- KEYS[1]    the shard's meta (routes the script)
-- ARGV       prefix, maxlen, keep ms, then for each job: E, J, lease, run ms
-- Returns    for each job 1 (done) or 0 (lease lost)
local keep_ms = tonumber(ARGV[3])
local done, seen = {}, {}

local function ack_job(E, J, lease, run_ms)
  local job = find_leased_job(E, J, lease)
  if not job or seen[job.EJ] then return 0 end -- its keys are deleted at the end: twice in one call is once
  seen[job.EJ] = true
  end_lease(job)
  job.queue.warm_bytes = job.queue.warm_bytes - job.size
  done[#done + 1] = job_key(job.EJ)
  if keep_ms > 0 then
    -- The id stays taken for a while: a producer that never saw its answer and asks again must not run it twice.
    redis.call('SET', body_key(job.EJ), '', 'PX', keep_ms)
  else
    done[#done + 1] = body_key(job.EJ)
  end
  count_op(job.queue, 'ack', nil, run_ms)
  return 1
end

local answers = {}
for i = 4, #ARGV, 4 do
  answers[#answers + 1] = ack_job(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
end
for i = 1, #done, 1000 do redis.call('DEL', unpack(done, i, math.min(i + 999, #done))) end
save_all(ARGV[2])
return answers
