-- cancel: delete a waiting job. If requested, mark a running job: its worker learns of it when it extends the lease, and the
-- job never waits again (waiting.lua).
--@flags allow-oom
--@include waiting, save
-- KEYS[1]    hash of the job (routes the script)
-- ARGV       prefix, maxlen, E:J, 1 to mark a running job, else 0
-- Returns    its state before: ready or scheduled (deleted), running (marked, if requested), another one (unchanged); nil:
--            there is no such job
local state = redis.call('HGET', KEYS[1], 'state')
if state == 'ready' or state == 'scheduled' then
  remove_waiting(ARGV[3], 'cancel')
  save_all(ARGV[2])
elseif state == 'running' and ARGV[4] == '1' then
  redis.call('HSET', KEYS[1], 'cancel', '1')
end
return state
