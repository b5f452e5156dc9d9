-- How much fits into a queue's warm tier.
--@include shard

-- Every job that takes memory counts, whether it waits, is scheduled or runs: a mass nack passes no cap.
local function held_by(queue) return queue.ready + queue.warm_scheduled + queue.running end

-- The caps of a queue: its own ("jobs bytes"), else the stored ones, else those of the client.
local function caps_of(queue, items, bytes)
  local own_items, own_bytes = (queue.caps or ''):match('^(%d+) (%d+)$')
  return tonumber(own_items or stored_bound(1) or items), tonumber(own_bytes or stored_bound(2) or bytes)
end

-- The byte cap of the shard: the stored one, else that of the client. 0: no cap.
local function shard_cap(bytes) return stored_bound(3) or tonumber(bytes) end

-- Whether one more job fits. An empty warm tier takes any job, or one that is larger than the cap could never run.
local function fits(queue, size, max_items, max_bytes)
  local held = held_by(queue)
  return held == 0 or (held < max_items and queue.warm_bytes + size <= max_bytes)
end

-- What all queues of the shard hold, as this script has changed it so far. (It has changed no other queue.)
local function shard_used(queue)
  return shard_numbers().bytes + queue.warm_bytes - queue.bytes_before
end

local REFILL_BELOW, LEAVE_AT = 0.9, 0.8

-- How full the warm tier is: 1 is full. Of items or bytes, whichever is worse.
local function fullness(queue, max_items, max_bytes)
  return math.max(held_by(queue) / max_items, queue.warm_bytes / max_bytes)
end
