-- bury: move entries to the dead letters, with their fields and the reason.
--@flags allow-oom
--@include group
-- KEYS, ARGV as in group.lua, then for each entry: id, delivery, reason
-- Returns    for each entry 1 (buried) or 0 (lost)
local MAX_VALUES = 7000 -- Lua can pass about 8,000 values to a command
local answers, buried = {}, 0

local function bury_entry(id, delivery, reason)
  local entry = redis.call('XRANGE', STREAM, id, id)[1]
  local fields = entry and entry[2] or {} -- of an entry that was deleted, id and reason are kept
  if #fields > MAX_VALUES then
    reason = reason .. ' (Of its ' .. #fields / 2 .. ' fields the first ' .. MAX_VALUES / 2 .. ' are kept.)'
    for i = #fields, MAX_VALUES + 1, -1 do fields[i] = nil end
  end
  local own_fields = { 'headrace:id', id, 'headrace:reason', reason, 'headrace:deliveries', delivery }
  for _, value in ipairs(own_fields) do fields[#fields + 1] = value end
  redis.call('XADD', DEAD_LETTERS, '*', unpack(fields))
  redis.call('XACK', STREAM, GROUP, id)
  buried = buried + 1
end

for i = 3, #ARGV, 3 do
  local held = is_held(ARGV[i], ARGV[i + 1])
  if held then bury_entry(ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
  answers[#answers + 1] = held and 1 or 0
end
add_count('bury', buried)
return answers
