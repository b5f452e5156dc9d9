-- Keys of a shard. Twin of queue/keys.py, which describes each of them.
-- ARGV[1] of every script is the prefix of the shard, `hr:{shard}:`. E (environment), Q (queue) and J (job id) are the
-- encoded parts of keys; EJ is `E:J`.
local PREFIX = ARGV[1]

local META, METRICS, METRICS_ENABLED = PREFIX .. 'meta', PREFIX .. 'metrics', PREFIX .. 'metrics:enabled'
local ENVS, QUEUES, LEASES = PREFIX .. 'envs', PREFIX .. 'queues', PREFIX .. 'leases'
local ENVIRONMENTS = PREFIX .. 'environments'
-- Environments that request a larger share of a quota of their project or organisation (cold/shares.py).
local SHARE_REQUESTS = PREFIX .. 'asking'
local SCHEDULED, EXPIRIES = PREFIX .. 'scheduled', PREFIX .. 'expiries'
local ATTEMPT_EXPIRIES = PREFIX .. 'attempt_expiries'
-- What idle workers and the maintenance owner block on (wake.lua).
local WAKE, DUE = PREFIX .. 'wake', PREFIX .. 'due'
-- Body of a dead job that is stored in PostgreSQL. (The body of a job that is done is empty.)
local DEAD_IN_POSTGRES = 'dead'
-- Queues that a failed script left partly changed → jobs that it was adding or leasing (failure.lua, repair.lua).
local REPAIR = PREFIX .. 'repair'
local QUARANTINE = PREFIX .. 'quarantine'
-- Tasks of deferred jobs that their workers do not have (missing_tasks.lua).
local MISSING = PREFIX .. 'missing'
-- `hungry`: queues that request a refill, scored by the time of the request. Movers block on it.
local COLD, REFILL_REQUESTS = PREFIX .. 'cold', PREFIX .. 'hungry'
local BURIED, LOSSES = PREFIX .. 'buried', PREFIX .. 'losses'

local function env_key(E) return PREFIX .. 'env:' .. E end
local function env_queues_key(E) return PREFIX .. 'env:' .. E .. ':queues' end
local function env_names_key(E) return PREFIX .. 'env:' .. E .. ':names' end
-- Ids that callers chose for jobs in PostgreSQL (cold_ids.lua).
local function env_cold_ids_key(E) return PREFIX .. 'env:' .. E .. ':cold_ids' end
-- `parked`: names of queues that were taken out of their `class` index because the environment is at its limit.
local function env_blocked_key(E) return PREFIX .. 'env:' .. E .. ':parked' end
-- `class`: fair index of the environments that have a queue of this name, for workers that serve queues by name.
local function class_key(Q) return PREFIX .. 'class:' .. Q end
local function wake_key(Q) return PREFIX .. 'wake:' .. Q end
local function queue_key(E, Q) return PREFIX .. 'q:' .. E .. ':' .. Q end
local function levels_key(E, Q) return PREFIX .. 'q:' .. E .. ':' .. Q .. ':levels' end
local function ready_key(E, Q, priority)
  local key = PREFIX .. 'q:' .. E .. ':' .. Q .. ':ready'
  return priority == 0 and key or key .. ':' .. priority
end
local function details_key(E, Q) return PREFIX .. 'q:' .. E .. ':' .. Q .. ':details' end
local function detail_key(E, Q, detail) return PREFIX .. 'q:' .. E .. ':' .. Q .. ':detail:' .. detail end
-- `moving`, `moved`: rows of PostgreSQL that are jobs in Valkey already (placed.lua).
local function moving_key(E, Q) return PREFIX .. 'q:' .. E .. ':' .. Q .. ':moving' end
local function moved_key(E, Q) return PREFIX .. 'q:' .. E .. ':' .. Q .. ':moved' end
local function dead_key(E, Q) return PREFIX .. 'q:' .. E .. ':' .. Q .. ':dead' end
local function job_key(EJ) return PREFIX .. 'job:' .. EJ end
local function body_key(EJ) return PREFIX .. 'body:' .. EJ end
local function attempts_key(EJ) return PREFIX .. 'attempts:' .. EJ end
