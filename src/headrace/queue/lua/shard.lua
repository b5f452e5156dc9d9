-- Counters and settings of the shard, which are fields of META.
--@include keys

-- Read at most once per script. `emit_events` writes the counters back, once, if `changed` is set.
local shard

local function load_shard()
  if not shard then
    local v = redis.call('HMGET', META, 'seq', 'bytes', 'delivery', 'turn', 'bounds', 'postgres', 'quota', 'shared',
      'maintain_at', 'result_bytes')
    shard = { seq = tonumber(v[1] or 0), bytes = tonumber(v[2] or 0), delivery = tonumber(v[3] or 0),
      turn = tonumber(v[4] or 0), bounds = v[5], postgres = v[6] or '', quota = v[7], shared = v[8],
      maintain_at = tonumber(v[9] or 0), result_bytes = tonumber(v[10] or 0) }
  end
  return shard
end

-- Return a stored bound, which applies to every client; nil: none is stored, and the option of the client applies. The
-- field `bounds` holds them by position: jobs of a queue (1), bytes of a queue (2), bytes of the shard (3), events of
-- the metric stream (4).
local function get_stored_bound(position)
  local bounds = load_shard().bounds
  return bounds and tonumber(bounds:match(('%S+ '):rep(position - 1) .. '(%S+)') or nil) or nil
end
