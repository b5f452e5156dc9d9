-- The twin of keys.py: builds the keys that a script finds out by itself.
-- ARGV[1] of every script is the shard's prefix, `hr:{shard}:`. E, Q and J are encoded parts.
local PREFIX = ARGV[1]

local META, METRICS, METRICS_ENABLED = PREFIX .. 'meta', PREFIX .. 'metrics', PREFIX .. 'metrics:enabled'
local ENVS, QUEUES, LEASES = PREFIX .. 'envs', PREFIX .. 'queues', PREFIX .. 'leases'
local ENVIRONMENTS = PREFIX .. 'environments'
-- Environments that need a larger share of a quota of their project or organisation (cold/shares.py).
local SHARE_REQUESTS = PREFIX .. 'asking'
local SCHEDULED, EXPIRIES = PREFIX .. 'scheduled', PREFIX .. 'expiries'
-- The body of a job that is dead and kept in PostgreSQL. (One that is done has an empty body.)
local DEAD_IN_POSTGRES = 'dead'
-- Queues that a script left half changed → ids of jobs it was adding (J:J), see repair.lua.
local REPAIR = PREFIX .. 'repair'
local QUARANTINE = PREFIX .. 'quarantine'
local COLD, REFILL_REQUESTS = PREFIX .. 'cold', PREFIX .. 'hungry'
local BURIED, LOSSES = PREFIX .. 'buried', PREFIX .. 'losses'

local function env_key(E) return PREFIX .. 'env:' .. E end
local function env_queues_key(E) return PREFIX .. 'env:' .. E .. ':queues' end
local function env_names_key(E) return PREFIX .. 'env:' .. E .. ':names' end
local function env_blocked_key(E) return PREFIX .. 'env:' .. E .. ':parked' end
local function class_key(Q) return PREFIX .. 'class:' .. Q end
local function queue_key(E, Q) return PREFIX .. 'q:' .. E .. ':' .. Q end
local function levels_key(E, Q) return PREFIX .. 'q:' .. E .. ':' .. Q .. ':levels' end
local function ready_key(E, Q, priority)
  local key = PREFIX .. 'q:' .. E .. ':' .. Q .. ':ready'
  return priority == 0 and key or key .. ':' .. priority
end
local function details_key(E, Q) return PREFIX .. 'q:' .. E .. ':' .. Q .. ':details' end
local function detail_key(E, Q, detail) return PREFIX .. 'q:' .. E .. ':' .. Q .. ':detail:' .. detail end
local function moving_key(E, Q) return PREFIX .. 'q:' .. E .. ':' .. Q .. ':moving' end
local function moved_key(E, Q) return PREFIX .. 'q:' .. E .. ':' .. Q .. ':moved' end
local function dead_key(E, Q) return PREFIX .. 'q:' .. E .. ':' .. Q .. ':dead' end
local function job_key(EJ) return PREFIX .. 'job:' .. EJ end
local function body_key(EJ) return PREFIX .. 'body:' .. EJ end
