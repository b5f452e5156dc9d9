-- emit_events: emit the metric events of a watched stream, in its shard. Totals are absolute, and their growth since
-- the last report is counted here, so a watcher that restarts, or a second one, counts nothing twice.
--@flags allow-oom
--@include clock
-- KEYS       state of the stream, meta of the shard, metrics, metrics:enabled, environment, gauges of all streams
--            watched in the environment, list of all streams of the shard that were ever reported
-- ARGV       maxlen, org, project, env, queue, time of the snapshot (µs, clock of the stream's server), basis of the
--            totals ('broker': Headrace workers count; 'server': counters of the server), depth, scheduled, running,
--            oldest ms (''), waits, run times, id of the sample before the first of these, id of the last one, name in
--            the list of streams, then the total of each verb ('': unknown)
-- Returns    1, or 0 if a newer snapshot was reported already
local STATE, META, METRICS, ENABLED, ENV, GAUGES, ALL = unpack(KEYS)
local FIRST_TOTAL = 17
local LATE_US = 60000000 -- a snapshot that is older by more is not late: the clock of the server was set back
local GAUGE_TTL_MS = 600000 -- a stream without a report for this long is no longer watched

local state = {}
local flat = redis.call('HGETALL', STATE)
for i = 1, #flat, 2 do state[flat[i]] = flat[i + 1] end
local at = tonumber(ARGV[6])
local behind_us = state.at and tonumber(state.at) - at
if behind_us and behind_us >= 0 and behind_us < LATE_US then return 0 end

-- Headrace workers start counting at 0, so all that they have counted happened after the last report.
if state.basis == 'server' and ARGV[7] == 'broker' then
  for _, verb in ipairs(VERBS) do
    if verb ~= 'enqueue' then state['t:' .. verb] = '0' end
  end
  state.basis = ARGV[7]
end
-- The same for a verb that the watcher of an earlier release did not report.
if state.basis == 'broker' then
  for _, verb in ipairs(VERBS) do
    if verb ~= 'enqueue' then state['t:' .. verb] = state['t:' .. verb] or '0' end
  end
end
local is_first_report = state.epoch == nil
local totals, restarted = {}, is_first_report or state.basis ~= ARGV[7]
for i, verb in ipairs(VERBS) do
  totals[verb] = tonumber(ARGV[FIRST_TOTAL + i - 1])
  local last_total = tonumber(state['t:' .. verb])
  if totals[verb] and last_total and totals[verb] < last_total then restarted = true end
end
if restarted then
  local epoch = math.max(NOW, tonumber(state.epoch or 0) + 1)
  -- History still has what earlier epochs counted (`b:` fields).
  local before = { 'first', state.first or state.epoch or format_int(epoch) }
  for _, verb in ipairs(VERBS) do
    local sum = tonumber(state['b:' .. verb] or 0) + tonumber(state['o:' .. verb] or 0)
    before[#before + 1], before[#before + 2] = 'b:' .. verb, format_int(sum)
  end
  redis.call('DEL', STATE)
  redis.call('HSET', STATE, unpack(before))
  state = { epoch = format_int(epoch), samples = state.samples }
end

redis.call('SADD', ALL, ARGV[16])

-- Gauges of the environment: its own if it has queues, else sums over the streams watched in it.
redis.call('HSET', GAUGES, ARGV[5], ARGV[8] .. ' ' .. ARGV[10] .. ' ' .. format_int(NOW))
local env = redis.call('HMGET', ENV, 'depth', 'running', 'limit')
if not env[1] then
  local depth, running = 0, 0
  local all = redis.call('HGETALL', GAUGES)
  for i = 1, #all, 2 do
    local d, r, reported_at = all[i + 1]:match('^(%d+) (%d+) (%d+)$')
    if NOW - tonumber(reported_at) > GAUGE_TTL_MS then
      redis.call('HDEL', GAUGES, all[i])
    else
      depth, running = depth + tonumber(d), running + tonumber(r)
    end
  end
  env = { format_int(depth), format_int(running) }
end

local enabled = redis.call('GET', ENABLED) ~= '0'
-- As in queue/lua/shard.lua: the length that is stored for every client, else that of this one.
local maxlen = (redis.call('HGET', META, 'bounds') or ''):match('(%d+)$') or ARGV[1]
local event = { org = ARGV[2], project = ARGV[3], env = ARGV[4], queue = ARGV[5], epoch = state.epoch, depth = ARGV[8],
  scheduled = ARGV[9], running = ARGV[10], env_depth = env[1], env_running = env[2], env_limit = env[3] or nil,
  oldest_ms = ARGV[11], cold_depth = 0, cold_bytes = 0 } -- bytes: unknown

local function emit_event(op, n, odometer, waits, runs, odometers)
  local seq = redis.call('HINCRBY', META, 'seq', 1)
  if not enabled then return end
  event.seq, event.op, event.n, event.odometer = format_int(seq), op, format_int(n), odometer
  event.waits, event.runs, event.odometers = waits, runs, odometers
  redis.pcall('XADD', METRICS, 'MAXLEN', '~', maxlen, '*', 'e', pack_event(event))
end

-- Use samples only if they continue where the last report ended; before the first report their age is unknown.
local samples_continue = not is_first_report and state.samples == ARGV[14]
local samples = { dequeue = samples_continue and ARGV[12] or '', ack = samples_continue and ARGV[13] or '' }
local odometers = {}
for i, verb in ipairs(VERBS) do
  local last_total, odometer = tonumber(state['t:' .. verb]), tonumber(state['o:' .. verb] or 0)
  local growth = totals[verb] and last_total and totals[verb] - last_total or 0
  odometer = odometer + growth
  if growth > 0 or (samples[verb] or '') ~= '' then
    emit_event(verb, growth, format_int(odometer), verb == 'dequeue' and samples.dequeue or '',
      verb == 'ack' and samples.ack or '')
  end
  if totals[verb] then
    redis.call('HSET', STATE, 't:' .. verb, format_int(totals[verb]), 'o:' .. verb, format_int(odometer))
  end
  odometers[i] = format_int(odometer)
end
emit_event('resync', 0, nil, '', '', table.concat(odometers, ','))
local upto = samples_continue and ARGV[15] or state.samples
  or format_int(math.floor(at / 1000)) .. '-18446744073709551615'
redis.call('HSET', STATE, 'epoch', state.epoch, 'basis', ARGV[7], 'at', format_int(at), 'samples', upto)
return 1
