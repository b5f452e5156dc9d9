-- remove_consumers: consumers of ours that left are removed once they hold nothing. One with pending entries never is: the server
-- would forget those with it.
--@flags allow-oom
--@include ids, group
-- KEYS, ARGV as in group.lua (consumer '': none leaves now), then idle ms, how our consumers' names begin
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
