-- Registered ids: ids that callers chose, of jobs that wait or are dead in PostgreSQL. While an id is registered, no queue
-- of its environment accepts another job of this id, and producers need not read PostgreSQL to find out.
--
-- The hash of an environment maps J to `c<token>` (confirmed: PostgreSQL has the job) or `p<token> <ms>` (pending since
-- then: the spill may not be committed, so PostgreSQL decides). The token is that of the row in the table cold_ids: it
-- tells the entry from an earlier or later one of the same id.
--
-- `cold_id_bytes` of the environment is written before the first entry and deleted after the last: scripts read the hash
-- only if the field exists.
--@include keys, clock, chunks

-- Bytes that an entry takes besides its id, about; and the part of the bound that is divided among environments once the
-- rest is used up, as in shard_capacity.lua.
local COLD_ID_OVERHEAD = 64
local COLD_ID_RESERVE = 0.25

local function measure_cold_id(J) return #J + COLD_ID_OVERHEAD end

-- Return the entries of `ids` by J; false: not registered.
local function read_cold_ids(E, ids)
  local entries = {}
  for i = 1, #ids, 1000 do
    local last = math.min(i + 999, #ids)
    for offset, entry in ipairs(redis.call('HMGET', env_cold_ids_key(E), unpack(ids, i, last))) do
      entries[ids[i + offset - 1]] = entry
    end
  end
  return entries
end

local function get_cold_id_token(entry) return entry:match('^%a(%S*)') end

local function format_pending(token) return 'p' .. token .. ' ' .. format_int(NOW) end

-- Return whether `bytes` more fit: into the bound of the shard, or into the share of the environment in the reserve.
local function cold_ids_fit(E, bytes, max_bytes)
  if bytes <= 0 then return true end
  local used = tonumber(redis.call('HGET', META, 'cold_id_bytes') or 0)
  if used + bytes <= max_bytes then return true end
  local env_used = tonumber(redis.call('HGET', env_key(E), 'cold_id_bytes') or 0)
  local share = max_bytes * COLD_ID_RESERVE / math.max(1, redis.call('SCARD', ENVIRONMENTS))
  return used + bytes <= max_bytes * (1 + COLD_ID_RESERVE) and env_used + bytes <= share
end

-- Set entries, given as J and value in turn. `bytes` is the size of those that are new.
local function put_cold_ids(E, entries, bytes)
  if #entries == 0 then return end
  redis.call('HINCRBY', META, 'cold_id_bytes', bytes)
  redis.call('HINCRBY', env_key(E), 'cold_id_bytes', bytes)
  call_in_chunks('HSET', env_cold_ids_key(E), entries)
end

-- Remove entries. `bytes` is their size.
local function remove_cold_ids(E, ids, bytes)
  if #ids == 0 then return end
  call_in_chunks('HDEL', env_cold_ids_key(E), ids)
  if redis.call('EXISTS', env_cold_ids_key(E)) == 0 then
    bytes = tonumber(redis.call('HGET', env_key(E), 'cold_id_bytes') or 0)
    redis.call('HDEL', env_key(E), 'cold_id_bytes')
  else
    redis.call('HINCRBY', env_key(E), 'cold_id_bytes', -bytes)
  end
  redis.call('HINCRBY', META, 'cold_id_bytes', -bytes)
end
