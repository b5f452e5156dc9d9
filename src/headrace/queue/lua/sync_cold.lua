-- sync_cold: what PostgreSQL holds of a queue, in absolute numbers under a version that only grows. What grew since the
-- last time is counted here, so whoever changed PostgreSQL and died before telling is made good by the next one.
--@flags allow-oom
--@include postgres, placed, cold_mode, save
-- KEYS[1]    the queue's hash (routes the script to its shard)
-- ARGV       prefix, maxlen, E, Q, org, project, env, queue, most jobs and bytes of the warm tier, queue's epoch that
--            the totals count from, version, cold epoch, jobs that could run, jobs not yet due, bytes, dead jobs, totals
--            of spill, expire, cancel and redrive, when the longest-waiting job became eligible ('': as it was),
--            PostgreSQL's id, then row numbers that are gone
-- Returns    {1 (taken), 0 (older than what is known), 2 (taken: the same version was known with other numbers) or 3 (the
--            totals count from another epoch: nothing was taken), queue's epoch, version that is known}; WRONGDB, and
--            nothing is written, if PostgreSQL is another one
local E, Q = ARGV[3], ARGV[4]
local FIRST_DELETED_ROW = 24
if is_wrong_database(ARGV[23]) then return redis.error_reply(WRONG_DATABASE) end
local queue = load_queue(E, Q)
local deleted_rows = {}
for i = FIRST_DELETED_ROW, #ARGV do deleted_rows[#deleted_rows + 1] = ARGV[i] end
if not queue.epoch then create_queue(queue, ARGV[5], ARGV[6], ARGV[7], ARGV[8]) end
local cold = queue.cold or new_cold()
local version = tonumber(ARGV[12])
local placed = read_placed(queue, cold)
local placed_changed = remove_placed(queue, placed, deleted_rows)
if version < cold.version then
  if placed_changed then
    save_placed(queue, cold, placed)
    queue.resync = true
    save_all(ARGV[2])
  end
  return { 0, queue.epoch, format_int(cold.version) }
end

-- The totals belong to another life of this queue: Valkey lost its data. Its odometers began anew, and so must they.
if ARGV[11] ~= queue.epoch then
  if placed_changed then save_placed(queue, cold, placed) end
  save_all(ARGV[2]) -- a queue that has just come into being has all its numbers
  return { 3, queue.epoch, format_int(cold.version) }
end

local function set_total(op, total)
  local n = total - cold[op]
  cold[op] = total
  if n ~= 0 then queue.cold_changed = true end
  return math.max(0, n)
end

local function count_growth(op, n)
  if n > 0 then count_op(queue, op, nil, nil, n) end
end

-- Totals only grow, unless PostgreSQL was restored to an earlier point. Jobs that it accepted since then and that were not
-- brought back here are missing; the mover reports them.
local lost_jobs = cold.spill - tonumber(ARGV[18])
if lost_jobs > 0 then
  redis.call('HINCRBY', LOSSES, queue.name, format_int(math.min(lost_jobs, cold.depth + cold.scheduled)))
end

local before, depth_before = pack_cold(cold), cold.depth
local visible_before = table.concat({ cold.depth, cold.scheduled, cold.bytes, cold.dead }, ' ')
local same_version = cold.version == version and not placed_changed
placed.version, cold.version = version, version
placed.reported_depth, placed.reported_scheduled = tonumber(ARGV[14]), tonumber(ARGV[15])
placed.reported_bytes, cold.dead = tonumber(ARGV[16]), tonumber(ARGV[17])
save_placed(queue, cold, placed)
queue.cold_changed = false
local drifted = same_version
  and visible_before ~= table.concat({ cold.depth, cold.scheduled, cold.bytes, cold.dead }, ' ')
local spilled = set_total('spill', tonumber(ARGV[18]))
count_growth('enqueue', spilled)
count_growth('spill', spilled)
count_growth('expire', set_total('expire', tonumber(ARGV[19])))
count_growth('cancel', set_total('cancel', tonumber(ARGV[20])))
count_growth('redrive', set_total('redrive', tonumber(ARGV[21])))
local oldest = tonumber(ARGV[22])
if oldest then cold.oldest = oldest end
if cold.depth == 0 then cold.oldest = nil end
-- What waits in PostgreSQL must not be overtaken, however it came there.
if cold.depth > 0 and cold.on == 0 then
  -- In cold mode the epoch is left alone: a mover that closed it may be about to reopen the queue.
  cold.epoch = math.max(cold.epoch, tonumber(ARGV[13]))
  enter_cold_mode(queue, find_caps(queue, ARGV[9], ARGV[10]))
end
if pack_cold(cold) ~= before then
  queue.cold_changed = true
  if #queue.ops == 0 then queue.resync = true end
end
-- A mover that placed nothing tells the same depth again: there is no room, and nothing new to ask for.
if cold.depth > 0 and cold.depth <= depth_before then queue.skip_refill_request = true end
save_all(ARGV[2])
return { drifted and 2 or 1, queue.epoch, format_int(cold.version) }
