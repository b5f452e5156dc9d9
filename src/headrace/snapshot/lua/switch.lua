-- switch: serve a staged version, unless a newer number was assigned since.
--@flags allow-oom
-- KEYS       current, number, versions, attempts, data, meta
-- ARGV       version, bytes of data, versions to keep, ms that superseded versions live, prefix of the keys of
--            versions
-- Returns    1 (served), 0 (superseded by a newer one), -1 (the staged version is incomplete)
local version = tonumber(ARGV[1])
local current = tonumber(string.sub(redis.call('GET', KEYS[1]) or '', 2)) or 0
local newest = tonumber(redis.call('GET', KEYS[2])) or 0
-- Repeated: clients of a cluster repeat a call whose answer was lost.
if version == current then return 1 end
if version ~= newest or version < current then
  redis.call('HINCRBY', KEYS[4], 'superseded', 1)
  redis.call('DEL', KEYS[5], KEYS[6])
  return 0
end
if redis.call('STRLEN', KEYS[5]) ~= tonumber(ARGV[2]) or redis.call('EXISTS', KEYS[6]) == 0 then return -1 end

redis.call('PERSIST', KEYS[5])
redis.call('PERSIST', KEYS[6])
redis.call('SET', KEYS[1], 'v' .. ARGV[1])
redis.call('ZADD', KEYS[3], version, 'v' .. ARGV[1])
redis.call('HINCRBY', KEYS[4], 'ok', 1)
redis.call('HSET', KEYS[4], 'ok_at_unix', redis.call('TIME')[1])

for rank, name in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1, 'REV')) do
  local data, meta = ARGV[5] .. name .. ':data', ARGV[5] .. name .. ':meta'
  if rank > tonumber(ARGV[3]) then
    redis.call('DEL', data, meta)
    redis.call('ZREM', KEYS[3], name)
  elseif rank > 1 and redis.call('PTTL', data) == -1 then
    redis.call('PEXPIRE', data, ARGV[4])
    redis.call('PEXPIRE', meta, ARGV[4])
  end
end
return 1
