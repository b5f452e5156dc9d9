-- elect: elect the mover of a shard. The fencing token grows with every change of the leader; scripts refuse older
-- tokens.
--@flags allow-oom
-- KEYS       mover of the shard, meta of the shard
-- ARGV       name, lease ms
-- Returns    the token if this mover leads (renewed or newly elected), else 0
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return tonumber(redis.call('HGET', KEYS[2], 'mover_token'))
end
if holder then return 0 end
-- The token first: with the old one, this mover could not be distinguished from its predecessor.
local token = redis.call('HINCRBY', KEYS[2], 'mover_token', 1)
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return token
