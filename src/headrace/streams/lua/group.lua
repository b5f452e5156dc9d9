-- Pending entries of a consumer group. The pending entries list of the group is authoritative; `retries` only adds when
-- an entry may be delivered again.
-- KEYS       stream, retries (entry → not before), stats (counters), samples (waits and run times), dead letters, deferred
--            (entry → since when it has been deferred without another result), wake (stream of one entry, added when
--            the next retry became earlier: idle workers wait for it)
-- ARGV       group, consumer
--@include clock, retry_consumer
local STREAM, RETRIES, STATS, SAMPLES, DEAD_LETTERS, DEFERRED, WAKE = unpack(KEYS)
local GROUP, CONSUMER = ARGV[1], ARGV[2]
local MAX_SAMPLES = 10000

local function add_count(verb, n)
  if n > 0 then redis.call('HINCRBY', STATS, 'o:' .. verb, n) end
end

-- Keep waits or run times for the watcher, which adds them to events. Bounded, because there may be no watcher. Errors
-- are ignored: an operation that was applied must not be reported as failed because of its samples.
local function record_samples(kind, values)
  if #values > 0 then
    redis.pcall('XADD', SAMPLES, 'MAXLEN', '~', MAX_SAMPLES, '*', kind, table.concat(values, ','))
  end
end

-- Return the entry of the pending entries list: {id, consumer, idle ms, deliveries}; nil: it is not pending.
local function find_pending(id) return redis.call('XPENDING', STREAM, GROUP, id, id, 1)[1] end

-- Return whether this consumer holds an entry by this delivery. A result of an older delivery is refused.
local function is_held(id, delivery)
  local found = find_pending(id)
  return found ~= nil and found[2] == CONSUMER and found[4] == tonumber(delivery)
end

-- Return when the first retry is due; math.huge: no entry waits for one.
local function find_next_retry()
  return tonumber(redis.call('ZRANGE', RETRIES, 0, 0, 'WITHSCORES')[2] or math.huge)
end

-- Note that an entry may be delivered again at a time. Called before anything is written for it.
local next_retry
local next_retry_is_earlier = false
local function note_retry(at)
  next_retry = next_retry or find_next_retry()
  if at < next_retry then next_retry, next_retry_is_earlier = at, true end
end

-- Wake the idle workers of the group if this call made the next retry earlier; for the one before it they have a timer.
-- Errors are ignored, as those of samples: workers that are not woken dequeue after their longest wait.
local function wake_idle_workers()
  if next_retry_is_earlier then
    redis.pcall('XADD', WAKE, 'MAXLEN', 1, '*', 'due', format_int(next_retry))
  end
end

-- Give an entry to RETRY_CONSUMER until it may be delivered again. Return false if it was deleted from the stream.
local function schedule_retry(id, at, deliveries)
  note_retry(at)
  local moved = redis.call('XCLAIM', STREAM, GROUP, RETRY_CONSUMER, 0, id, 'RETRYCOUNT', deliveries, 'JUSTID')
  if #moved == 0 then return false end
  redis.call('ZADD', RETRIES, format_int(at), id)
  return true
end

-- Forget since when an entry has been deferred: it got another result. Most groups have no deferred entries.
local has_deferred
local function end_deferral(id)
  if has_deferred == nil then has_deferred = redis.call('EXISTS', DEFERRED) == 1 end
  if has_deferred then redis.call('ZREM', DEFERRED, id) end
end
