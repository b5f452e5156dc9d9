-- sync_settings_state: whether what operators decided was restored on this server, and that it was.
--@flags allow-oom
-- KEYS[1]    the shard's meta (routes the script)
-- ARGV       prefix, maxlen, life of the server for which settings were restored ('': only ask)
-- Returns    {life of the server, life for which settings were restored ('': none), id of the PostgreSQL ('': not known)}
-- The life changes when the server restarts or a replica takes over: either may lack the last settings.
local life = redis.call('INFO', 'replication'):match('master_replid:(%x+)') or 'unknown'
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], 'settings_for', ARGV[3]) end
local v = redis.call('HMGET', KEYS[1], 'settings_for', 'postgres')
return { life, v[1] or '', v[2] or '' }
