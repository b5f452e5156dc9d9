-- refill: place jobs of PostgreSQL into the warm tier, in the order given, until it or a quota of the environment is
-- full.
--@include fencing, postgres, placed, recovery, waiting, quota_checks, shard_capacity, save
-- KEYS[1]    hash of the queue (routes the script)
-- ARGV       prefix, maxlen, token of the mover, ms until which its lock in PostgreSQL is certain, E, Q, org, project,
--            env, queue, warm caps of the queue (jobs, bytes), byte cap of the shard (0: none), id of the PostgreSQL,
--            then for each row: its number, J, body, payload bytes, enqueued ms, due ms, priority, expires ms ('':
--            never), max attempts, 1 if it counts as delayed in PostgreSQL, else 0
-- Returns    {epoch of the queue, answers}. An answer per row: 1 (placed), 0 (placed before), -1 (its id is in use), 2
--            (its TTL has passed); rows that found no room have none
-- Errors     FENCED: another mover was elected, or the lock may have ended. WRONGDB: jobs of the shard are in another
--            PostgreSQL. POISON <number>: this row is invalid. Nothing is written in these cases.
local E, Q = ARGV[5], ARGV[6]
local FIRST, STRIDE = 15, 10
local shard_max = find_shard_cap(ARGV[13])
if is_fenced(ARGV[3]) then return redis.error_reply('FENCED another mover took over') end
if is_wrong_database(ARGV[14]) then return redis.error_reply(WRONG_DATABASE) end
-- The mover was paused: its rows may have been cancelled or expired since it claimed them.
if NOW > tonumber(ARGV[4]) then return redis.error_reply('FENCED the lock of this mover may be gone') end

-- Checked before the first write, because Lua does not roll back.
local NUMBERS = { 3, 4, 5, 6, 8 }
local function is_valid_row(i)
  for _, offset in ipairs(NUMBERS) do
    local number = tonumber(ARGV[i + offset])
    if not number or number ~= number or math.abs(number) > 1e16 then return false end
  end
  return ARGV[i + 1] ~= '' and (ARGV[i + 7] == '' or tonumber(ARGV[i + 7]) ~= nil)
end
for i = FIRST, #ARGV, STRIDE do
  if not is_valid_row(i) then return redis.error_reply('POISON ' .. ARGV[i]) end
end

local queue = load_queue(E, Q)
if not queue.epoch then create_queue(queue, ARGV[7], ARGV[8], ARGV[9], ARGV[10]) end
local max_items, max_bytes = find_caps(queue, ARGV[11], ARGV[12])
local cold = queue.cold
if cold and (cold.max_items ~= max_items or cold.max_bytes ~= max_bytes) then
  -- The caps changed since the queue entered cold mode: refill requests use the new ones.
  cold.max_items, cold.max_bytes, queue.cold_changed = max_items, max_bytes, true
end
cold = cold or new_cold()
local placed = read_placed(queue, cold)
local placed_rows, moved_values, added = {}, {}, {}

-- Rows that were placed before. The number of a row stays in `moving` until PostgreSQL has deleted the row, even if the
-- job is done. A PostgreSQL that was restored to an earlier point uses numbers again; then the job id differs.
local placed_before = {}
if redis.call('EXISTS', moving_key(E, Q)) == 1 then
  local rows = {}
  for i = FIRST, #ARGV, STRIDE do rows[#rows + 1] = ARGV[i] end
  for start = 1, #rows, 1000 do
    local flags = redis.call('SMISMEMBER', moving_key(E, Q), unpack(rows, start, math.min(start + 999, #rows)))
    for offset, flag in ipairs(flags) do
      if flag == 1 then
        local row, J = rows[start + offset - 1], ARGV[FIRST + (start + offset - 2) * STRIDE + 1]
        local delayed, bytes, moved_J = parse_moved(redis.call('HGET', moved_key(E, Q), row))
        placed_before[row] = not moved_J or moved_J == J
        if not placed_before[row] then count_placed(placed, delayed, bytes, -1) end
      end
    end
  end
end

-- Make a row a job; return its answer.
local function place_row(row, J, body, size, enqueued, due, priority, expires, max_attempts, delayed)
  local EJ = E .. ':' .. J
  if placed_before[row] then return 0 end
  if expires ~= '' and tonumber(expires) <= NOW then return 2 end
  if added[J] then return -1 end
  queue.in_flight[#queue.in_flight + 1] = J
  if not redis.call('SET', body_key(EJ), body, 'NX') then
    local stored_body, v = redis.call('GET', body_key(EJ)), redis.call('HMGET', job_key(EJ), 'Q', 'enqueued')
    if stored_body == body and (v[1] or Q) == Q and (v[2] or enqueued) == enqueued then
      -- The same job, not an equal one: a script that failed had placed it, completely or in part.
      mark_for_repair(queue.name)
      if is_complete(EJ) then return 0 end
    elseif stored_body ~= DEAD_IN_POSTGRES then
      return -1
    end
    redis.call('SET', body_key(EJ), body) -- it was incomplete, or dead and redriven in PostgreSQL
    redis.call('HDEL', job_key(EJ), 'expires', 'deferred_since', 'cancel') -- if a script failed before it deleted them
  end
  added[J] = true
  local detail = body:match('^[^\t]*\t([^\n]*)')
  local scheduled = due > NOW
  redis.call('HSET', job_key(EJ), 'Q', Q, 'size', size, 'state', scheduled and 'scheduled' or 'ready',
    'enqueued', enqueued, 'due', format_float(due), 'priority', priority, 'attempts', 0, 'max_attempts', max_attempts,
    'detail', detail)
  if expires ~= '' then
    redis.call('HSET', job_key(EJ), 'expires', expires)
    redis.call('ZADD', EXPIRIES, expires, EJ)
  end
  if scheduled then add_scheduled(queue, J, due) else add_ready(queue, J, due, priority, detail) end
  queue.warm_bytes = queue.warm_bytes + size
  placed_rows[#placed_rows + 1] = row
  append_scored(moved_values, row, delayed .. ' ' .. size .. ' ' .. J)
  local kind = delayed == '1' and 'scheduled' or 'depth'
  placed[kind], placed.bytes = placed[kind] + 1, placed.bytes + size
  count_op(queue, 'refill')
  return 1
end

local answers = {}
for i = FIRST, #ARGV, STRIDE do
  local size = tonumber(ARGV[i + 3])
  if not job_fits(queue, size, max_items, max_bytes) or not job_fits_shard(queue, size, shard_max) then break end
  local exceeded = find_exceeded_quota(queue, 1, size)
  if exceeded then
    request_share(queue, exceeded, size)
    break
  end
  answers[#answers + 1] = place_row(ARGV[i], ARGV[i + 1], ARGV[i + 2], size, ARGV[i + 4], tonumber(ARGV[i + 5]),
    tonumber(ARGV[i + 6]), ARGV[i + 7], ARGV[i + 8], ARGV[i + 9])
end
if #placed_rows > 0 then save_placed(queue, cold, placed) end
-- Otherwise a mover that placed nothing would request its own next refill, without end.
if #placed_rows == 0 then queue.skip_refill_request = true end
save_all(ARGV[2])
-- Last: if the script fails, rows that are placed in part must not count as placed.
call_in_chunks('HSET', moved_key(E, Q), moved_values)
call_in_chunks('SADD', moving_key(E, Q), placed_rows)
return { queue.epoch, answers }
