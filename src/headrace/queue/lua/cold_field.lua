-- The field `cold` of a queue: counters of its cold tier. Twin of _COLD_FIELDS in queue/state.py.
--@include clock

-- Numbers in this order, separated by blanks; queues without cold jobs have no such field. `on` is cold mode: new jobs
-- wait in PostgreSQL, behind those that wait there. `version` grows with every change in PostgreSQL. `spill`, `expire`,
-- `cancel` and `redrive` are lifetime totals of PostgreSQL; sync_cold counts their growth.
local COLD_FIELDS = { 'on', 'epoch', 'version', 'depth', 'scheduled', 'bytes', 'dead', 'spill', 'expire', 'cancel',
  'redrive', 'max_items', 'max_bytes', 'oldest' }

local function unpack_cold(text)
  local cold, i = {}, 1
  for value in text:gmatch('[^ ]+') do
    cold[COLD_FIELDS[i]] = tonumber(value)
    i = i + 1
  end
  return cold -- `oldest` is the last, and missing while nothing waits in PostgreSQL
end

local function pack_cold(cold)
  local values = {}
  for i = 1, #COLD_FIELDS - 1 do values[i] = format_int(cold[COLD_FIELDS[i]]) end
  if cold.oldest then values[#values + 1] = format_float(cold.oldest) end
  return table.concat(values, ' ')
end

local function new_cold()
  return { on = 0, epoch = 1, version = 0, depth = 0, scheduled = 0, bytes = 0, dead = 0, spill = 0, expire = 0,
    cancel = 0, redrive = 0, max_items = 0, max_bytes = 0 }
end
