-- restore_setting: set a setting to the value in PostgreSQL. A queue that Valkey lost is created, so that it does not
-- run without the setting.
--@include save
-- KEYS[1]    hash of the queue or environment (routes the script)
-- ARGV       prefix, maxlen, E, Q ('': the environment), org, project, env, queue, field, value ('': none)
-- Returns    1, or 0 if there is no such queue and no value
local E, Q, field, value = ARGV[3], ARGV[4], ARGV[9], ARGV[10]
local is_missing = Q ~= '' and redis.call('HEXISTS', KEYS[1], 'epoch') == 0
if value == '' then
  if is_missing then return 0 end
  redis.call('HDEL', KEYS[1], field)
else
  redis.call('HSET', KEYS[1], field, value)
end
local names = Q ~= '' and { Q } or redis.call('SMEMBERS', env_names_key(E))
load_env(E).was_blocked = true
for _, name in ipairs(names) do load_queue(E, name).resync = true end
if is_missing then create_queue(load_queue(E, Q), ARGV[5], ARGV[6], ARGV[7], ARGV[8]) end
save_all(ARGV[2])
return 1
