-- ack: complete jobs. A result under a lease that is no longer held is refused.
--@flags allow-oom
--@include leases, records, save
-- KEYS[1]    meta of the shard (routes the script)
-- ARGV       prefix, maxlen, ms for which ids stay reserved (0: not at all), number of jobs, for each job: E, J, lease,
--            run ms; then records of attempts, if any (records.lua)
-- Returns    for each job 1 (done) or 0 (lease lost)
local keep_ms = tonumber(ARGV[3])
local last_job = 4 + 4 * ARGV[4]
local done, seen, keep_record = {}, {}, find_records(last_job + 1)

local function ack_job(number, E, J, lease, run_ms)
  local job = find_leased_job(E, J, lease)
  if not job or seen[job.EJ] then return 0 end -- a job counts once per call: its keys are deleted at the end
  seen[job.EJ] = true
  end_lease(job)
  job.queue.warm_bytes = job.queue.warm_bytes - job.size
  if keep_record then keep_record(number, job) end
  done[#done + 1] = job_key(job.EJ)
  if keep_ms > 0 then
    -- Reserve the id: a producer that got no answer and repeats the enqueue must not run the job twice.
    redis.call('SET', body_key(job.EJ), '', 'PX', keep_ms)
  else
    done[#done + 1] = body_key(job.EJ)
  end
  count_op(job.queue, 'ack', nil, run_ms)
  return 1
end

local answers = {}
for i = 5, last_job, 4 do
  answers[#answers + 1] = ack_job(#answers + 1, ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
end
for i = 1, #done, 1000 do redis.call('DEL', unpack(done, i, math.min(i + 999, #done))) end
save_all(ARGV[2])
return answers
