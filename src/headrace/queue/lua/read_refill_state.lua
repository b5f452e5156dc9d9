-- read_refill_state: read the state of the warm tier of a queue that the mover needs before it moves rows.
--@include placed, cold_field, quota_checks, shard_capacity
-- KEYS[1]    hash of the queue (routes the script)
-- ARGV       prefix, maxlen, E, Q, warm caps of the queue (jobs, bytes), byte cap of the shard (0: none), 1 to list the
--            rows that were placed and not confirmed
-- Returns    {now ms, epoch of the queue (0: there is no such queue), 1 in cold mode, cold epoch, jobs and bytes that
--            fit, 1 if it needs a refill, 1 if it may leave cold mode, number of rows that were placed and not
--            confirmed, if requested their numbers and job ids ('': unknown) in turn}
local E, Q = ARGV[3], ARGV[4]
local queue = load_queue(E, Q)
local max_items, max_bytes = find_caps(queue, ARGV[5], ARGV[6])
local shard_max = find_shard_cap(ARGV[7])
local ratio = compute_fill_ratio(queue, max_items, max_bytes)
local bytes = max_bytes - queue.warm_bytes
if shard_max > 0 then
  ratio, bytes = math.max(ratio, compute_shard_fill_ratio(queue, shard_max)),
    math.min(bytes, count_free_shard_bytes(queue, shard_max))
end
local items, quotas = max_items - count_warm(queue), queue.environment.quotas
if quotas and (quotas.warm_jobs or quotas.warm_bytes) then
  local used_jobs, used_bytes = count_env_warm(queue)
  ratio = math.max(ratio, compute_quota_fill_ratio(quotas, used_jobs, used_bytes))
  items = math.min(items, (quotas.warm_jobs or math.huge) - used_jobs)
  bytes = math.min(bytes, (quotas.warm_bytes or math.huge) - used_bytes)
end
local needs_refill = ratio < REFILL_BELOW or count_warm(queue) == 0
local cold = queue.cold or new_cold()
if not needs_refill and quotas and cold.depth > 0 then
  request_share(queue, quotas.is_share.warm_jobs and 'warm_jobs' or 'warm_bytes')
end
local unconfirmed = {}
if ARGV[8] == '1' then
  for _, row in ipairs(redis.call('SMEMBERS', moving_key(E, Q))) do
    local _, _, J = parse_moved(redis.call('HGET', moved_key(E, Q), row))
    unconfirmed[#unconfirmed + 1] = row
    unconfirmed[#unconfirmed + 1] = J or ''
  end
end
return { format_float(NOW), queue.epoch or '0', cold.on, cold.epoch, math.max(0, items),
  math.max(0, bytes), needs_refill and 1 or 0, ratio <= LEAVE_COLD_AT and 1 or 0,
  redis.call('SCARD', moving_key(E, Q)), unconfirmed }
