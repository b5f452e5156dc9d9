-- The twin of keys.py: builds the keys that a script finds out by itself.
-- ARGV[1] of every script is the shard's prefix, `hr:{shard}:`. E, Q and J are encoded parts.
local P = ARGV[1]

local META, METRICS, METRICS_ENABLED = P .. 'meta', P .. 'metrics', P .. 'metrics:enabled'
local ENVS, QUEUES, LEASES = P .. 'envs', P .. 'queues', P .. 'leases'
local ENVIRONMENTS = P .. 'environments'
-- Environments that need a larger share of a quota of their project or organisation (cold/shares.py).
local ASKING = P .. 'asking'
local SCHEDULED, EXPIRIES = P .. 'scheduled', P .. 'expiries'
-- The body of a job that is dead and kept in PostgreSQL. (One that is done has an empty body.)
local DEAD_ELSEWHERE = 'dead'
-- Queues that a script left half changed → ids of jobs it was adding (J:J), see repair.lua.
local REPAIR = P .. 'repair'
local QUARANTINE = P .. 'quarantine'
local COLD, HUNGRY, BURIED, LOSSES = P .. 'cold', P .. 'hungry', P .. 'buried', P .. 'losses'

local function env_key(E) return P .. 'env:' .. E end
local function env_queues_key(E) return P .. 'env:' .. E .. ':queues' end
local function env_names_key(E) return P .. 'env:' .. E .. ':names' end
local function env_parked_key(E) return P .. 'env:' .. E .. ':parked' end
local function class_key(Q) return P .. 'class:' .. Q end
local function queue_key(E, Q) return P .. 'q:' .. E .. ':' .. Q end
local function levels_key(E, Q) return P .. 'q:' .. E .. ':' .. Q .. ':levels' end
local function ready_key(E, Q, priority)
  local key = P .. 'q:' .. E .. ':' .. Q .. ':ready'
  return priority == 0 and key or key .. ':' .. priority
end
local function details_key(E, Q) return P .. 'q:' .. E .. ':' .. Q .. ':details' end
local function detail_key(E, Q, detail) return P .. 'q:' .. E .. ':' .. Q .. ':detail:' .. detail end
local function moving_key(E, Q) return P .. 'q:' .. E .. ':' .. Q .. ':moving' end
local function moved_key(E, Q) return P .. 'q:' .. E .. ':' .. Q .. ':moved' end
local function dead_key(E, Q) return P .. 'q:' .. E .. ':' .. Q .. ':dead' end
local function job_key(EJ) return P .. 'job:' .. EJ end
local function body_key(EJ) return P .. 'body:' .. EJ end
