-- elect: one mover per shard. The token grows with every change of hands; scripts refuse an older one.
--@flags allow-oom
-- KEYS       the shard's mover, the shard's meta
-- ARGV       name, lease ms
-- Returns    the token if this mover leads (renewed or taken over), else 0
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return tonumber(redis.call('HGET', KEYS[2], 'mover_token'))
end
if holder then return 0 end
-- The token first: with the old one, this mover could not be told from the one before it.
local token = redis.call('HINCRBY', KEYS[2], 'mover_token', 1)
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return token
