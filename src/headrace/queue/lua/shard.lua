-- Numbers and settings of the shard, in META.
--@include keys

-- The shard's own numbers, read at most once and written back at most once.
local shard

local function load_shard()
  if not shard then
    local v = redis.call('HMGET', META, 'seq', 'bytes', 'delivery', 'turn', 'bounds', 'postgres', 'quota', 'shared')
    shard = { seq = tonumber(v[1] or 0), bytes = tonumber(v[2] or 0), delivery = tonumber(v[3] or 0),
      turn = tonumber(v[4] or 0), bounds = v[5], postgres = v[6] or '', quota = v[7], shared = v[8] }
  end
  return shard
end

-- A stored bound, which holds for every client; nil: none is stored, and the client's own option holds. They are stored as
-- words in one field: most jobs (1) and bytes (2) of a queue, most bytes of the shard (3), events of the metric stream (4).
local function get_stored_bound(position)
  local bounds = load_shard().bounds
  return bounds and tonumber(bounds:match(('%S+ '):rep(position - 1) .. '(%S+)') or nil) or nil
end
