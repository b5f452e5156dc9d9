-- sync_settings_state: read whether settings were restored on this server, or record that they were.
--@flags allow-oom
-- KEYS[1]    meta of the shard (routes the script)
-- ARGV       prefix, maxlen, id of the server for which settings were restored ('': only read)
-- Returns    {id of the server, id of the server for which settings were restored ('': none), id of the PostgreSQL ('':
--            unknown)}
-- The id is the replication id, which changes when the server restarts or a replica takes over: either may lack the
-- latest settings.
local life = redis.call('INFO', 'replication'):match('master_replid:(%x+)') or 'unknown'
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], 'settings_for', ARGV[3]) end
local v = redis.call('HMGET', KEYS[1], 'settings_for', 'postgres')
return { life, v[1] or '', v[2] or '' }
