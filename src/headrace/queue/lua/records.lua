-- Records of ended attempts: what tasks keep of their results and errors.
--
-- The records of a job are a list, oldest first. An element is "<enqueued>\t<lease>\t<Q>\t<bytes>\n<body>": when its job
-- was enqueued, the lease of the attempt, the queue, and the bytes of the whole list when this one was added. So one
-- command adds a record, and the last element describes the list. A list has records of one job only: the first record
-- of a later job with the same id replaces it. The sums of `bytes` are `result_bytes` of the queue and of the shard.
-- Lists have no expiry: maintenance deletes those whose time in ATTEMPT_EXPIRIES has come, and gives back their bytes.
--@include keys, clock, queues, capacity

-- Return the functions that read, add and delete records. They are nested so that Lua does not create them in every run
-- of a script: most calls have no records.
local function open_records()
  local MAX_RECORDS, MAX_RECORD_BYTES = 20, 65536
  local RECORD_OVERHEAD = 256 -- bytes that a record takes besides its body, about
  local RECORDS_SHARE = 0.5 -- of the byte caps of a queue and of the shard; the rest is left to jobs
  local records = {}

  -- Return what the last record of a job says of the list; nil: there are no records.
  function records.read_last(EJ)
    local value = redis.pcall('LINDEX', attempts_key(EJ), -1)
    if type(value) == 'table' then
      if not value.err:find('WRONGTYPE', 1, true) then error(value) end
      return nil
    end
    local enqueued, lease, Q, bytes = (value or ''):match('^([^\t\n]*)\t([^\t\n]*)\t([^\t\n]*)\t(%d+)\n')
    return enqueued and { enqueued = enqueued, lease = lease, Q = Q, bytes = tonumber(bytes) } or nil
  end

  -- Add to `result_bytes` of a queue and of the shard. A sum below 0 is left by a script that failed.
  local function count_bytes(queue, bytes)
    local function add_bytes(key)
      local sum = redis.call('HINCRBY', key, 'result_bytes', bytes)
      if sum < 0 then redis.call('HSET', key, 'result_bytes', 0) end
      return math.max(0, sum)
    end
    queue.result_bytes = add_bytes(queue_key(queue.E, queue.Q))
    load_shard().result_bytes = add_bytes(META)
  end

  -- Delete the records of a job. Their queue is loaded first, so that it is repaired if the script fails.
  local function drop(EJ, last)
    local E = EJ:match('^(.*):[^:]*$')
    local queue = redis.call('EXISTS', queue_key(E, last.Q)) == 1 and load_queue(E, last.Q)
    redis.call('UNLINK', attempts_key(EJ))
    if queue then count_bytes(queue, -last.bytes) end
    redis.call('ZREM', ATTEMPT_EXPIRIES, EJ)
  end

  -- Return whether a record of `bytes` bytes fits. Records do not take the reserve of the shard (shard_capacity.lua).
  local function fits(queue, bytes, max_bytes, max_shard_bytes)
    local _, left = find_caps(queue, 0, max_bytes) -- the cap without the records that are kept
    if queue.warm_bytes + bytes > left
      or queue.result_bytes + bytes > (left + queue.result_bytes) * RECORDS_SHARE then return false end
    local shard_state, shard_max = load_shard(), find_shard_cap(max_shard_bytes)
    local results, jobs = shard_state.result_bytes + bytes, shard_state.bytes
    for _, touched in ipairs(touched_queues) do jobs = jobs + touched.warm_bytes - touched.bytes_before end
    return shard_max == 0 or (jobs + results <= shard_max and results <= shard_max * RECORDS_SHARE)
  end

  -- Keep a record of a job whose lease ends, if it fits.
  function records.keep(job, ttl_ms, size, body, max_bytes, max_shard_bytes)
    local queue, key = job.queue, attempts_key(job.EJ)
    local enqueued = redis.call('HGET', job_key(job.EJ), 'enqueued') or ''
    local last = records.read_last(job.EJ)
    if last and last.enqueued ~= enqueued then
      drop(job.EJ, last)
      last = nil
    end
    if last and last.lease == job.lease then return end -- added by the same call, which failed and is repeated
    local bytes = size + RECORD_OVERHEAD
    if size > MAX_RECORD_BYTES or not fits(queue, bytes, max_bytes, max_shard_bytes) then
      redis.call('HINCRBY', queue_key(queue.E, queue.Q), 'results_dropped', 1)
      return
    end
    if last and redis.call('LLEN', key) >= MAX_RECORDS then
      bytes = bytes - RECORD_OVERHEAD - #redis.call('LINDEX', key, 0):match('\n(.*)$')
    end
    local total = (last and last.bytes or 0) + bytes
    -- First the index: an entry without a list does no harm.
    redis.call('ZADD', ATTEMPT_EXPIRIES, format_int(NOW + ttl_ms), job.EJ)
    redis.call('RPUSH', key, table.concat({ enqueued, job.lease, queue.Q, format_int(total) }, '\t') .. '\n' .. body)
    if last then redis.call('LTRIM', key, -MAX_RECORDS, -1) end
    count_bytes(queue, bytes)
  end

  -- Delete records whose time has passed. Return how many jobs had them. `save_all` must follow.
  function records.drop_old(at_most)
    local ended = redis.call('ZRANGEBYSCORE', ATTEMPT_EXPIRIES, '-inf', format_int(NOW), 'LIMIT', 0, at_most)
    for _, EJ in ipairs(ended) do
      local last = records.read_last(EJ)
      if last then drop(EJ, last) else redis.call('ZREM', ATTEMPT_EXPIRIES, EJ) end
    end
    return #ended
  end

  return records
end

-- Return a function that keeps the record of a job, given the job and its number in the call; nil: the call has no
-- records. From ARGV[first] on there are the byte caps of the queue and of the shard, then for each record: number of
-- the job, TTL ms, bytes, body (empty if it is too long). The function must be called before the result of the job is
-- written: if the script fails, the caller repeats the call.
local function find_records(first)
  if not ARGV[first] then return nil end
  local positions, records = {}, open_records()
  for i = first + 2, #ARGV, 4 do positions[tonumber(ARGV[i])] = i end
  return function(number, job)
    local i = positions[number]
    if not i then return end
    records.keep(job, tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), ARGV[i + 3], ARGV[first], ARGV[first + 1])
  end
end
