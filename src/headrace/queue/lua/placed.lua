-- Placed rows: rows of PostgreSQL that are jobs in Valkey already and are not deleted in PostgreSQL yet.
--
-- PostgreSQL counts such a row until it is deleted, so the cold counters of a queue (`queue.cold`) are those of
-- PostgreSQL minus the placed rows. The stored field `placed` has both: the version, the counters that PostgreSQL
-- reported with it, and the placed rows among them. `moving` is the set of their numbers, `moved` maps a number to "<1
-- if it was delayed, else 0> <bytes> <J>".
--@include keys, clock, chunks

local PLACED_FIELDS = { 'version', 'reported_depth', 'reported_scheduled', 'reported_bytes', 'depth', 'scheduled',
  'bytes' }

local function read_placed(queue, cold)
  local stored = redis.call('HGET', queue_key(queue.E, queue.Q), 'placed')
  local placed, i = { is_stored = stored and true or false }, 1
  for value in (stored or '0 0 0 0 0 0 0'):gmatch('%d+') do
    placed[PLACED_FIELDS[i]] = tonumber(value)
    i = i + 1
  end
  if placed.version ~= cold.version then
    -- Written by a process of a release that does not subtract placed rows.
    placed.version = cold.version
    placed.reported_depth, placed.reported_scheduled, placed.reported_bytes = cold.depth, cold.scheduled, cold.bytes
  end
  return placed
end

-- Count a row that was placed (sign 1) or deleted in PostgreSQL (sign -1).
local function count_placed(placed, delayed, bytes, sign)
  local name = delayed and 'scheduled' or 'depth'
  placed[name] = math.max(0, placed[name] + sign)
  placed.bytes = math.max(0, placed.bytes + sign * bytes)
end

-- Store `placed`, and set the cold counters of the queue.
local function save_placed(queue, cold, placed)
  local depth_before = cold.depth
  cold.depth = math.max(0, placed.reported_depth - placed.depth)
  cold.scheduled = math.max(0, placed.reported_scheduled - placed.scheduled)
  cold.bytes = math.max(0, placed.reported_bytes - placed.bytes)
  if cold.depth == 0 then cold.oldest = nil end
  queue.environment.depth = queue.environment.depth + cold.depth - depth_before
  queue.cold, queue.cold_changed = cold, true
  if placed.depth + placed.scheduled + placed.bytes == 0 then -- no placed rows, as for most queues
    if placed.is_stored then redis.call('HDEL', queue_key(queue.E, queue.Q), 'placed') end
    return
  end
  local values = {}
  for i, name in ipairs(PLACED_FIELDS) do values[i] = format_int(placed[name]) end
  redis.call('HSET', queue_key(queue.E, queue.Q), 'placed', table.concat(values, ' '))
end

-- Return the parts of a value of `moved`: whether the row was delayed, its bytes, J. Without a value, bytes and J are
-- nil.
local function parse_moved(value)
  local delayed, bytes, J = (value or ''):match('^(%d) (%d+) (.*)$')
  return delayed == '1', tonumber(bytes), J
end

-- Remove rows that were deleted in PostgreSQL. Return whether any was counted as placed.
local function remove_placed(queue, placed, rows)
  local was_counted, moved = false, moved_key(queue.E, queue.Q)
  for i = 1, #rows, 1000 do
    for _, value in ipairs(redis.call('HMGET', moved, unpack(rows, i, math.min(i + 999, #rows)))) do
      local delayed, bytes = parse_moved(value)
      if bytes then
        count_placed(placed, delayed, bytes, -1)
        was_counted = true
      end
    end
  end
  call_in_chunks('HDEL', moved, rows)
  call_in_chunks('SREM', moving_key(queue.E, queue.Q), rows)
  if #rows > 0 and redis.call('EXISTS', moving_key(queue.E, queue.Q)) == 0 then
    if placed.depth + placed.scheduled + placed.bytes > 0 then was_counted = true end
    placed.depth, placed.scheduled, placed.bytes = 0, 0, 0
    redis.call('DEL', moved)
  end
  return was_counted
end
