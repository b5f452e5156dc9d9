-- Dead letters of a group: entries that are not retried any more.
--@include group
local MAX_VALUES = 7000 -- Lua can pass about 8,000 values to a command

-- Move an entry to the dead letters, with its fields and the reason.
local function bury_entry(id, deliveries, reason)
  local entry = redis.call('XRANGE', STREAM, id, id)[1]
  local fields = entry and entry[2] or {} -- of an entry that was deleted, id and reason are kept
  if #fields > MAX_VALUES then
    reason = reason .. ' (Of its ' .. #fields / 2 .. ' fields the first ' .. MAX_VALUES / 2 .. ' are kept.)'
    for i = #fields, MAX_VALUES + 1, -1 do fields[i] = nil end
  end
  local own_fields = { 'headrace:id', id, 'headrace:reason', reason, 'headrace:deliveries', deliveries }
  for _, value in ipairs(own_fields) do fields[#fields + 1] = value end
  redis.call('XADD', DEAD_LETTERS, '*', unpack(fields))
  redis.call('XACK', STREAM, GROUP, id)
  end_deferral(id)
end
