-- cancel: a waiting job is taken back by its producer.
--@flags allow-oom
--@include waiting, save
-- KEYS[1]    the job's hash (routes the script)
-- ARGV       prefix, maxlen, E:J
-- Returns    its state before: ready or scheduled (it is gone), else unchanged; nil if there is none
local state = redis.call('HGET', KEYS[1], 'state')
if state == 'ready' or state == 'scheduled' then
  remove_waiting(ARGV[3], 'cancel')
  save_all(ARGV[2])
end
return state
