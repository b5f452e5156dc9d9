-- tick: emit a tick event, at most one per period.
--@flags allow-oom
--@include ticks
-- KEYS[1]    meta of the shard (routes the script)
-- ARGV       prefix, maxlen, period ms
-- Returns    1 if it ticked, else 0
return (emit_tick(ARGV[2], tonumber(ARGV[3])))
