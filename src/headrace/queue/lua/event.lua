-- Metric events: one per queue and verb per script call, after the state changed.
-- Needs keys.lua, state.lua and the generated pack_event.
local tallies, order = {}, {}

local function count(E, Q, op, wait, run)
  local name = E .. ':' .. Q .. ':' .. op
  local tally = tallies[name]
  if not tally then
    tally = { E = E, Q = Q, op = op, n = 0, waits = {}, runs = {} }
    tallies[name] = tally
    order[#order + 1] = tally
  end
  tally.n = tally.n + 1
  if wait then tally.waits[#tally.waits + 1] = whole(math.max(wait, 0)) end
  if run then tally.runs[#tally.runs + 1] = run end
end

local function gauges(E, Q)
  local q = redis.call('HMGET', queue_key(E, Q),
    'org', 'project', 'env', 'queue', 'epoch', 'running', 'scheduled', 'limit', 'bytes')
  local e = redis.call('HMGET', env_key(E), 'depth', 'running', 'limit')
  local head = redis.call('ZRANGE', ready_key(E, Q), 0, 0, 'WITHSCORES')
  return {
    org = q[1], project = q[2], env = q[3], queue = q[4], epoch = q[5],
    depth = redis.call('ZCARD', ready_key(E, Q)),
    running = q[6] or 0, scheduled = q[7] or 0, limit = q[8], bytes = q[9] or 0,
    env_depth = e[1] or 0, env_running = e[2] or 0, env_limit = e[3],
    oldest_ms = head[2],
  }
end

-- Odometers and the shard's event number always advance, so a switched-off or failing stream shows
-- as missing events later. Only the XADD may fail, and its error is dropped: an operation that
-- happened must not be reported as failed because nobody could write about it.
local function emit_all(maxlen)
  local enabled = redis.call('GET', METRICS_ENABLED) ~= '0'
  for _, tally in ipairs(order) do
    local odometer = redis.call('HINCRBY', queue_key(tally.E, tally.Q), 'o:' .. tally.op, tally.n)
    local seq = redis.call('HINCRBY', META, 'seq', 1)
    if enabled then
      local event = gauges(tally.E, tally.Q)
      event.seq, event.op, event.n, event.odometer = whole(seq), tally.op, tally.n, whole(odometer)
      event.waits, event.runs = table.concat(tally.waits, ','), table.concat(tally.runs, ',')
      redis.pcall('XADD', METRICS, 'MAXLEN', '~', maxlen, '*', 'e', pack_event(event))
    end
  end
end
