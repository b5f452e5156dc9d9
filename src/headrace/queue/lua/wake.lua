-- Wake keys, which idle workers block on, and the due signal, which the maintenance owner blocks on. Each is a sorted set
-- with one member, so that BZPOPMIN wakes one waiting client.
--
-- A wake key is a level, not an event: it exists while jobs may run and no worker was notified. WAKE belongs to the
-- index of environments, `wake:Q` to the `class` index of a queue name. It is set when an index gets a member, and again
-- by a dequeue that leaves some, so a worker that pops it must dequeue. Nothing is lost between "found nothing" and
-- "blocked", because the key waits for the worker. If a worker dies after the pop, maintenance sets WAKE again, and
-- workers that serve queues by name dequeue when their wait times out.
--
-- Errors are ignored: an operation that was applied must not be reported as failed because of its signal. A Valkey user
-- with the permissions of an older release may not write these keys.
--@include keys, clock, shard

local signals = {}

local function set_signal(key)
  signals[key] = true
end

-- Wake the maintenance owner if it would sleep past this time. META has `maintain_at`, when the owner will run next.
local function signal_due(at)
  if at < load_shard().maintain_at then set_signal(DUE) end
end

local function save_signals()
  for key in pairs(signals) do redis.pcall('ZADD', key, 0, '0') end
end
