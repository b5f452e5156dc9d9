-- bury: entries cannot be done. Each moves to the dead letters with its fields and the reason.
--@flags allow-oom
--@include group
-- KEYS, ARGV as in group.lua, then for each entry: id, delivery, reason
-- Returns    for each entry 1 (buried) or 0 (lost)
local MOST_VALUES = 7000 -- Lua hands no more than about 8,000 values to a command
local answers, buried = {}, 0

local function bury(id, delivery, reason)
  local entry = redis.call('XRANGE', STREAM, id, id)[1]
  local fields = entry and entry[2] or {} -- its id and reason are kept even if the entry itself was deleted
  if #fields > MOST_VALUES then
    reason = reason .. ' (Of its ' .. #fields / 2 .. ' fields the first ' .. MOST_VALUES / 2 .. ' are kept.)'
    for i = #fields, MOST_VALUES + 1, -1 do fields[i] = nil end
  end
  local about = { 'headrace:id', id, 'headrace:reason', reason, 'headrace:deliveries', delivery }
  for _, value in ipairs(about) do fields[#fields + 1] = value end
  redis.call('XADD', DEAD, '*', unpack(fields))
  redis.call('XACK', STREAM, GROUP, id)
  buried = buried + 1
end

for i = 3, #ARGV, 3 do
  local mine = held(ARGV[i], ARGV[i + 1])
  if mine then bury(ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
  answers[#answers + 1] = mine and 1 or 0
end
count('bury', buried)
return answers
