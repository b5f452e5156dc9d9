-- Ready jobs of a queue, by priority and eligible time.
--@include keys, clock, chunks, flows

-- Add a ready job; `save_ready` writes all of a script together. Jobs of priority 0 are in one sorted set, scored by
-- eligible time. Each other priority has a set of its own, and is listed in `levels`; most queues have none.
local function add_ready(queue, J, at, priority, detail)
  local score = format_float(at)
  local added = queue.added[priority]
  if not added then
    added = {}
    queue.added[priority] = added
  end
  append_scored(added, score, J)
  append_scored(find_flow_changes(queue, detail).added, score, J)
  queue.ready = queue.ready + 1
  queue.environment.depth = queue.environment.depth + 1
  if not queue.oldest or at < queue.oldest then queue.oldest = at end
end

local function save_ready(queue)
  for priority, members in pairs(queue.added) do
    if priority ~= 0 and redis.call('ZADD', levels_key(queue.E, queue.Q), -priority, priority) == 1 then
      queue.levels = queue.levels + 1
    end
    call_in_chunks('ZADD', ready_key(queue.E, queue.Q, priority), members)
  end
end

local function drop_empty_priority(queue, priority)
  if priority ~= 0 and redis.call('EXISTS', ready_key(queue.E, queue.Q, priority)) == 0 then
    redis.call('ZREM', levels_key(queue.E, queue.Q), priority)
    queue.levels = queue.levels - 1
  end
end

local function remove_ready(queue, J, priority, detail)
  redis.call('ZREM', ready_key(queue.E, queue.Q, priority), J)
  drop_empty_priority(queue, priority)
  remove_from_flow(queue, J, detail)
  queue.ready = queue.ready - 1
  queue.environment.depth = queue.environment.depth - 1
  queue.oldest_stale = true
end

-- Return the priorities that have ready jobs, highest first; { 0 } for a queue that uses no other priority.
local function list_priorities(queue)
  if queue.levels == 0 then return { 0 } end
  local found = {}
  local zero = redis.call('EXISTS', ready_key(queue.E, queue.Q, 0)) == 1
  for _, text in ipairs(redis.call('ZRANGE', levels_key(queue.E, queue.Q), 0, -1)) do
    local priority = tonumber(text)
    if zero and priority < 0 then
      found[#found + 1], zero = 0, false
    end
    found[#found + 1] = priority
  end
  if zero then found[#found + 1] = 0 end
  return found
end

-- Return when the longest-waiting job became eligible; nil: no job is ready.
local function find_oldest(queue)
  local oldest
  for _, priority in ipairs(list_priorities(queue)) do
    local at = redis.call('ZRANGE', ready_key(queue.E, queue.Q, priority), 0, 0, 'WITHSCORES')[2]
    if at and (not oldest or tonumber(at) < oldest) then oldest = tonumber(at) end
  end
  return oldest
end
