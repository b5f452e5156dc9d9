-- cancel: delete a waiting job.
--@flags allow-oom
--@include waiting, save
-- KEYS[1]    hash of the job (routes the script)
-- ARGV       prefix, maxlen, E:J
-- Returns    its state before: ready or scheduled (deleted), another one (unchanged); nil: there is no such job
local state = redis.call('HGET', KEYS[1], 'state')
if state == 'ready' or state == 'scheduled' then
  remove_waiting(ARGV[3], 'cancel')
  save_all(ARGV[2])
end
return state
