-- read_refill_state: what a mover must know of a queue before it moves anything.
--@include placed, cold_field, quota_checks, shard_capacity
-- KEYS[1]    the queue's hash (routes the script to its shard)
-- ARGV       prefix, maxlen, E, Q, most jobs and bytes of the warm tier, most bytes of the shard's (0: no cap), 1 to
--            name the rows that were placed and not confirmed
-- Returns    {now ms, queue's epoch (0: there is no such queue), cold mode 1 or 0, cold epoch, jobs and bytes that fit,
--            refill 1 or 0, may leave cold mode 1 or 0, how many rows were placed and not confirmed, and of each, if asked
--            for, its number and job id ('': not known)}
local E, Q = ARGV[3], ARGV[4]
local queue = queue_of(E, Q)
local max_items, max_bytes = caps_of(queue, ARGV[5], ARGV[6])
local shard_max = shard_cap(ARGV[7])
local full = fullness(queue, max_items, max_bytes)
local bytes = max_bytes - queue.warm_bytes
if shard_max > 0 then
  full, bytes = math.max(full, shard_fullness(queue, shard_max)), math.min(bytes, shard_room(queue, shard_max))
end
local items, quotas = max_items - held_by(queue), queue.environment.quotas
if quotas and (quotas.warm_jobs or quotas.warm_bytes) then
  local held_jobs, held_bytes = held_by_environment(queue)
  full = math.max(full, quota_fullness(quotas, held_jobs, held_bytes))
  items = math.min(items, (quotas.warm_jobs or math.huge) - held_jobs)
  bytes = math.min(bytes, (quotas.warm_bytes or math.huge) - held_bytes)
end
local refill = full < REFILL_BELOW or held_by(queue) == 0
local cold = queue.cold or new_cold()
if not refill and quotas and cold.depth > 0 then
  ask_for_share(queue, quotas.is_share.warm_jobs and 'warm_jobs' or 'warm_bytes')
end
local unconfirmed = {}
if ARGV[8] == '1' then
  for _, row in ipairs(redis.call('SMEMBERS', moving_key(E, Q))) do
    local _, _, J = split_moved(redis.call('HGET', moved_key(E, Q), row))
    unconfirmed[#unconfirmed + 1] = row
    unconfirmed[#unconfirmed + 1] = J or ''
  end
end
return { precise(NOW), queue.epoch or '0', cold.on, cold.epoch, math.max(0, items),
  math.max(0, bytes), refill and 1 or 0, full <= LEAVE_AT and 1 or 0,
  redis.call('SCARD', moving_key(E, Q)), unconfirmed }
