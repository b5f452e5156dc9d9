-- Rows of PostgreSQL that are jobs here already and are not deleted there yet.
--
-- PostgreSQL counts such a row as waiting until it is deleted, so its numbers minus the placed rows are what is really
-- left there: `queue.cold` always holds that difference. The queue's field `placed` keeps both sides of it: the version,
-- what PostgreSQL reported under it, and how much of that is placed. `moving` names the rows, `moved` keeps for each
-- "<1 if it was delayed, else 0> <bytes> <J>".
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
    -- Reported by a process of a release that subtracts nothing.
    placed.version = cold.version
    placed.reported_depth, placed.reported_scheduled, placed.reported_bytes = cold.depth, cold.scheduled, cold.bytes
  end
  return placed
end

-- A row becomes a job here (sign 1), or is deleted in PostgreSQL (sign -1).
local function count_placed(placed, delayed, bytes, sign)
  local name = delayed and 'scheduled' or 'depth'
  placed[name] = math.max(0, placed[name] + sign)
  placed.bytes = math.max(0, placed.bytes + sign * bytes)
end

-- Store `placed` and show in the queue what is left in PostgreSQL.
local function save_placed(queue, cold, placed)
  local depth_before = cold.depth
  cold.depth = math.max(0, placed.reported_depth - placed.depth)
  cold.scheduled = math.max(0, placed.reported_scheduled - placed.scheduled)
  cold.bytes = math.max(0, placed.reported_bytes - placed.bytes)
  if cold.depth == 0 then cold.oldest = nil end
  queue.environment.depth = queue.environment.depth + cold.depth - depth_before
  queue.cold, queue.cold_changed = cold, true
  if placed.depth + placed.scheduled + placed.bytes == 0 then -- as for most queues: both sides are the same
    if placed.is_stored then redis.call('HDEL', queue_key(queue.E, queue.Q), 'placed') end
    return
  end
  local values = {}
  for i, name in ipairs(PLACED_FIELDS) do values[i] = format_int(placed[name]) end
  redis.call('HSET', queue_key(queue.E, queue.Q), 'placed', table.concat(values, ' '))
end

-- The parts of a value of `moved`: whether the row was delayed, its bytes, J. Nothing if there is no value.
local function parse_moved(value)
  local delayed, bytes, J = (value or ''):match('^(%d) (%d+) (.*)$')
  return delayed == '1', tonumber(bytes), J
end

-- These rows are deleted in PostgreSQL. Returns whether any was counted as placed.
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
