-- Entries in the hands of a group's workers. The group's own list of pending entries is the truth; beside it stands
-- only when those that failed may be tried again.
-- KEYS       the stream, retries (entry → not before), stats (counters), samples (waits and run times), dead letters
-- ARGV       group, consumer
--@include clock
local STREAM, RETRIES, STATS, SAMPLES, DEAD_LETTERS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local GROUP, CONSUMER = ARGV[1], ARGV[2]
-- Nobody's: it holds the entries that wait to be tried again.
local RETRY_CONSUMER = 'headrace:waiting'
local MAX_SAMPLES = 10000

local function add_count(verb, n)
  if n > 0 then redis.call('HINCRBY', STATS, 'o:' .. verb, n) end
end

-- What a watcher puts into the events. Nobody may watch, so there is a bound; nor may this fail what happened.
local function record_samples(kind, values)
  if #values > 0 then
    redis.pcall('XADD', SAMPLES, 'MAXLEN', '~', MAX_SAMPLES, '*', kind, table.concat(values, ','))
  end
end

local function find_pending(id) return redis.call('XPENDING', STREAM, GROUP, id, id, 1)[1] end

-- Whether this consumer holds an entry, by the same delivery. A result of an older one is refused.
local function is_held(id, delivery)
  local found = find_pending(id)
  return found ~= nil and found[2] == CONSUMER and found[4] == tonumber(delivery)
end

-- Hand an entry over to nobody until it may be tried again. False if the entry itself is gone.
local function schedule_retry(id, at, deliveries)
  local moved = redis.call('XCLAIM', STREAM, GROUP, RETRY_CONSUMER, 0, id, 'RETRYCOUNT', deliveries, 'JUSTID')
  if #moved == 0 then return false end
  redis.call('ZADD', RETRIES, format_int(at), id)
  return true
end
