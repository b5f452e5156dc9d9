-- How much fits into a queue's warm tier.
--@include shard

-- Every job that takes memory counts, whether it waits, is scheduled or runs: a mass nack passes no cap.
local function count_warm(queue) return queue.ready + queue.warm_scheduled + queue.running end

-- The caps of a queue: its own ("jobs bytes"), else the stored ones, else those of the client.
local function find_caps(queue, items, bytes)
  local own_items, own_bytes = (queue.caps or ''):match('^(%d+) (%d+)$')
  return tonumber(own_items or get_stored_bound(1) or items), tonumber(own_bytes or get_stored_bound(2) or bytes)
end

-- The byte cap of the shard: the stored one, else that of the client. 0: no cap.
local function find_shard_cap(bytes) return get_stored_bound(3) or tonumber(bytes) end

-- Whether one more job fits. An empty warm tier takes any job, or one that is larger than the cap could never run.
local function job_fits(queue, size, max_items, max_bytes)
  local warm = count_warm(queue)
  return warm == 0 or (warm < max_items and queue.warm_bytes + size <= max_bytes)
end

-- What all queues of the shard hold, as this script has changed it so far. (It has changed no other queue.)
local function sum_shard_bytes(queue)
  return load_shard().bytes + queue.warm_bytes - queue.bytes_before
end

local REFILL_BELOW, LEAVE_COLD_AT = 0.9, 0.8

-- How full the warm tier is: 1 is full. Of items or bytes, whichever is worse.
local function compute_fill_ratio(queue, max_items, max_bytes)
  return math.max(count_warm(queue) / max_items, queue.warm_bytes / max_bytes)
end
