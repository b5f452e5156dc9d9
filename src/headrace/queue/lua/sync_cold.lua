-- sync_cold: set the cold counters of a queue to the values of PostgreSQL, which are absolute and have a version that
-- only grows. Growth of the totals since the last call is counted here, so a change whose client died before syncing is
-- counted with the next sync.
--@flags allow-oom
--@include postgres, placed, cold_mode, save
-- KEYS[1]    hash of the queue (routes the script)
-- ARGV       prefix, maxlen, E, Q, org, project, env, queue, warm caps of the queue (jobs, bytes), epoch of the queue
--            from which the totals count, version, cold epoch, waiting jobs, delayed jobs, bytes, dead jobs, totals of
--            spill, expire, cancel and redrive, when the longest-waiting job became eligible ('': unchanged), id of the
--            PostgreSQL, then numbers of rows that are deleted
-- Returns    {code, epoch of the queue, stored version}. Codes: 1 (applied), 0 (outdated version), 2 (applied: the same
--            version was stored with other counters), 3 (the totals count from another epoch: not applied)
-- Errors     WRONGDB: jobs of the shard are in another PostgreSQL; nothing is written
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

-- The totals count from an earlier epoch of this queue: Valkey lost its data, and its odometers restarted.
if ARGV[11] ~= queue.epoch then
  if placed_changed then save_placed(queue, cold, placed) end
  save_all(ARGV[2]) -- a queue that was created above needs all its fields
  return { 3, queue.epoch, format_int(cold.version) }
end

-- Store a total, and return its growth.
local function set_total(op, total)
  local n = total - cold[op]
  cold[op] = total
  if n ~= 0 then queue.cold_changed = true end
  return math.max(0, n)
end

local function count_growth(op, n)
  if n > 0 then count_op(queue, op, nil, nil, n) end
end

-- Totals only grow, unless PostgreSQL was restored to an earlier point. Jobs that it accepted after that point and that
-- were not refilled are lost; the mover reports them.
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
-- New jobs must not overtake those that wait in PostgreSQL, however these got there.
if cold.depth > 0 and cold.on == 0 then
  -- In cold mode the epoch stays: a mover that closed it may be about to call leave_cold.
  cold.epoch = math.max(cold.epoch, tonumber(ARGV[13]))
  enter_cold_mode(queue, find_caps(queue, ARGV[9], ARGV[10]))
end
if pack_cold(cold) ~= before then
  queue.cold_changed = true
  if #queue.ops == 0 then queue.resync = true end
end
-- No refill request if the depth did not grow: a mover that placed nothing would request its own next visit.
if cold.depth > 0 and cold.depth <= depth_before then queue.skip_refill_request = true end
save_all(ARGV[2])
return { drifted and 2 or 1, queue.epoch, format_int(cold.version) }
