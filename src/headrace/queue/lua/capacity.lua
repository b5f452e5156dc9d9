-- Capacity of the warm tier of a queue.
--@include shard

-- Return the jobs that count toward the cap: ready, scheduled and running, so that no nack can exceed it.
local function count_warm(queue) return queue.ready + queue.warm_scheduled + queue.running end

-- Return the caps of a queue, jobs and bytes: its own (`caps`), else the stored bounds, else those of the client. The
-- bytes are what records of attempts leave, which is at least 1.
local function find_caps(queue, items, bytes)
  local own_items, own_bytes = (queue.caps or ''):match('^(%d+) (%d+)$')
  return tonumber(own_items or get_stored_bound(1) or items),
    math.max(1, tonumber(own_bytes or get_stored_bound(2) or bytes) - queue.result_bytes)
end

-- Return the byte cap of the shard: the stored bound, else that of the client; 0: no cap.
local function find_shard_cap(bytes) return get_stored_bound(3) or tonumber(bytes) end

-- Return whether one more job fits. An empty queue accepts any job: one larger than the cap could otherwise never run.
local function job_fits(queue, size, max_items, max_bytes)
  local warm = count_warm(queue)
  return warm == 0 or (warm < max_items and queue.warm_bytes + size <= max_bytes)
end

-- Return the bytes of all queues of the shard, jobs and records of attempts, including changes of this script, which
-- changes no other queue.
local function sum_shard_bytes(queue)
  return load_shard().bytes + load_shard().result_bytes + queue.warm_bytes - queue.bytes_before
end

-- Fill ratios below which the mover refills, and up to which a queue may leave cold mode.
local REFILL_BELOW, LEAVE_COLD_AT = 0.9, 0.8

-- Return the fill ratio of the warm tier (1: full), of jobs or bytes, whichever is higher.
local function compute_fill_ratio(queue, max_items, max_bytes)
  return math.max(count_warm(queue) / max_items, queue.warm_bytes / max_bytes)
end
