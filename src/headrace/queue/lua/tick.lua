-- tick: says that the shard is alive, at most once per period. History knows from it that nothing happened,
-- and notices when the last event before a silence was lost.
--@flags allow-oom
--@include keys, state
-- KEYS[1]    the shard's meta (routes the script)
-- ARGV       prefix, maxlen, period ms
-- Returns    1 if it ticked
local last = redis.call('HGET', META, 'ticked')
if last and NOW - tonumber(last) < tonumber(ARGV[3]) then return 0 end
redis.call('HSET', META, 'ticked', whole(NOW))
local seq = redis.call('HINCRBY', META, 'seq', 1)
if redis.call('GET', METRICS_ENABLED) ~= '0' then
  redis.pcall('XADD', METRICS, 'MAXLEN', '~', ARGV[2], '*', 'e', pack_event({ seq = whole(seq), op = 'tick', n = 0 }))
end
return 1
