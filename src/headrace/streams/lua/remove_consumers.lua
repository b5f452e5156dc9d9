-- remove_consumers: remove idle consumers of Headrace that have no pending entries. The server would delete pending
-- entries with their consumer.
--@flags allow-oom
--@include ids, group
-- KEYS, ARGV as in group.lua (consumer: one to remove regardless of its idle time, '': none), then idle ms,
--            prefix of the names of Headrace consumers
-- Returns    how many were removed
local removed = 0
for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', STREAM, GROUP)) do
  local consumer = to_map(flat)
  local name, ours = consumer.name, consumer.name:sub(1, #ARGV[4]) == ARGV[4]
  if consumer.pending == 0 and (name == CONSUMER or (ours and consumer.idle >= tonumber(ARGV[3]))) then
    redis.call('XGROUP', 'DELCONSUMER', STREAM, GROUP, name)
    removed = removed + 1
  end
end
return removed
