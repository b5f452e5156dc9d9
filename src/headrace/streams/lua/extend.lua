-- extend: keep entries that a worker still runs: their idle time restarts, and no delivery is counted.
--@flags allow-oom
--@include group
-- KEYS, ARGV as in group.lua, then for each entry: id, delivery
-- Returns    for each entry 1 (still held) or 0 (lost)
local answers = {}
for i = 3, #ARGV, 2 do
  local held = is_held(ARGV[i], ARGV[i + 1])
  if held then redis.call('XCLAIM', STREAM, GROUP, CONSUMER, 0, ARGV[i], 'JUSTID') end
  answers[#answers + 1] = held and 1 or 0
end
return answers
