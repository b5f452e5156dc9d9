-- Search of dequeue for jobs whose task is not excluded: the caller does not have the excluded tasks. Their jobs stay ready
-- for other workers. Only the first jobs of a queue are examined, so jobs behind many skipped ones may not be found; see
-- take_overdue.
--@include keys, ready, queues, fair_index, recovery

-- Return the functions that replace those of dequeue.lua. Names of excluded tasks are arguments 9 to `first_name` - 1; the
-- first `orphaned_count` of them are those that no live worker has. (One function, so that a dequeue without exclusions
-- does not create the others.)
local function new_task_search(first_name, orphaned_count, lease_jobs)
  local MAX_SKIPPED = 200 -- jobs that one call skips
  local MAX_PASSED = 20 -- environments, of each queue name too, that one call leaves because it found only jobs to skip
  local WINDOW = 10 -- environments, or queues of one, that are examined at each place
  local PAGE = 50
  local OVERDUE_MS, MAX_OVERDUE = 5000, 10
  local ORPHANED, PROVIDED = 1, 2
  local excluded = {} -- by task
  for i = 9, first_name - 1 do excluded[ARGV[i]] = i < 9 + orphaned_count and ORPHANED or PROVIDED end
  local skipped, passed, overdue = 0, {}, {}
  local search = {}
  -- The server starts every script with the same seed, and a call that finds nothing changes no counter.
  math.randomseed(math.floor(NOW * 1000) % 2147483647)

  -- Return ORPHANED or PROVIDED if the task of a job is excluded; else nil.
  local function find_exclusion(queue, J)
    local detail = redis.call('HGET', job_key(queue.E .. ':' .. J), 'detail')
    return detail and excluded[detail:match('^[^\t]*')]
  end

  -- Return members of an index with their scores: the first ones, and some from a random place behind them, so that members
  -- with only jobs to skip do not hide the others for long.
  local function list_candidates(index)
    local found = redis.call('ZRANGE', index, 0, WINDOW - 1, 'WITHSCORES')
    local others = redis.call('ZCARD', index) - WINDOW
    if others > 0 then
      local first = WINDOW + math.random(others) - 1
      for _, value in ipairs(redis.call('ZRANGE', index, first, first + WINDOW - 1, 'WITHSCORES')) do
        found[#found + 1] = value
      end
    end
    return found
  end

  -- Return the jobs to lease, as ids and eligible times in turns: up to `limit` jobs of one priority that are not excluded
  -- and not younger than `bound`; and how many jobs of `ready` up to the last examined one were skipped. `queue.skips` are
  -- those at its start: they are not examined again.
  local function find_jobs(queue, priority, limit, bound)
    local found, ready = {}, ready_key(queue.E, queue.Q, priority)
    queue.skips = queue.skips or {}
    local position = queue.skips[priority] or 0
    while limit > 0 do
      local page_size = math.min(PAGE, limit - #found / 2 + (skipped > 0 and PAGE or 0))
      local page = redis.call('ZRANGEBYSCORE', ready, '-inf', bound, 'WITHSCORES', 'LIMIT', position, page_size)
      for i = 1, #page, 2 do
        position = position + 1
        local exclusion = find_exclusion(queue, page[i])
        if not exclusion then
          append_scored(found, page[i], page[i + 1])
          if #found >= 2 * limit then return found, position - limit end
        else
          skipped = skipped + 1
          if exclusion == ORPHANED and tonumber(page[i + 1]) < NOW - OVERDUE_MS and #overdue < MAX_OVERDUE then
            overdue[#overdue + 1] = { queue = queue, priority = priority, J = page[i], at = page[i + 1] }
          end
          if #found == 0 then queue.skips[priority] = position end
          if skipped >= MAX_SKIPPED then return found, position - #found / 2 end
        end
      end
      if #page < 2 * page_size then return found, position - #found / 2 end
    end
    return found, position
  end

  -- Return the priority of a queue that is next, and the eligible time of the oldest job that can be leased; nil: only
  -- jobs to skip were found.
  local function find_head(queue)
    local first_priority, oldest
    for _, priority in ipairs(list_priorities(queue)) do
      local at = tonumber(find_jobs(queue, priority, 1, '+inf')[2])
      if at then
        first_priority = first_priority or priority
        if not oldest or at < oldest then oldest = at end
      end
      if skipped >= MAX_SKIPPED then break end
    end
    return first_priority, oldest
  end

  -- Leave out a queue from now on.
  local function pass(queue) passed[queue.name] = true end

  -- Return the queue of an environment that is next, by the age of the oldest job that can be leased, and the age up to
  -- which it is next; nil: none.
  local function find_queue_of_env(E)
    local best, best_age, bound = nil, nil, '+inf'
    local names = list_candidates(env_queues_key(E))
    for i = 1, #names, 2 do
      local age = tonumber(names[i + 1])
      if not passed[E .. ':' .. names[i]] then
        if best_age and age >= best_age then -- the jobs of this queue and of those behind it are younger
          if bound == '+inf' or age < tonumber(bound) then bound = names[i + 1] end
          break
        end
        local queue = load_queue(E, names[i])
        local priority, oldest = find_head(queue)
        if not priority then
          pass(queue)
        elseif not best_age or oldest < best_age then
          if best_age then bound = format_float(best_age) end
          best, best_age = queue, oldest
        elseif bound == '+inf' or oldest < tonumber(bound) then
          bound = format_float(oldest)
        end
      end
    end
    return best, bound
  end

  local passed_envs, passed_count = {}, 0

  local function find_queue()
    local envs = list_candidates(ENVS)
    for i = 1, #envs, 2 do
      local E = envs[i]
      if not passed_envs[E] and passed_count < MAX_PASSED then
        local queue, bound = find_queue_of_env(E)
        if queue then return queue, bound end
        if redis.call('EXISTS', env_queues_key(E)) == 0 then
          redis.call('ZREM', ENVS, E) -- it has no ready job: a script failed before it removed it
        end
        passed_envs[E], passed_count = true, passed_count + 1
      end
    end
    return nil
  end

  local passed_of_name = {}

  -- As find_queue, among the queues that this worker serves. As without exclusions, a name is drawn at random, weighted by
  -- its environments; if only jobs to skip are found under it, the next name is tried.
  local function find_queue_by_name()
    local sizes, total = {}, 0
    for i = first_name, #ARGV do
      sizes[i] = redis.call('ZCARD', class_key(ARGV[i]))
      total = total + sizes[i]
    end
    local drawn, first = math.random(math.max(1, total)), first_name
    while first < #ARGV and drawn > sizes[first] do
      drawn, first = drawn - sizes[first], first + 1
    end
    local names = #ARGV - first_name + 1
    for offset = 0, names - 1 do
      local Q = ARGV[first_name + (first - first_name + offset) % names]
      local envs = list_candidates(class_key(Q))
      for i = 1, #envs, 2 do
        local E = envs[i]
        if not passed[E .. ':' .. Q] and (passed_of_name[Q] or 0) < MAX_PASSED then
          local queue = load_queue(E, Q)
          if is_env_blocked(queue.environment) or find_head(queue) then return queue, '+inf' end
          pass(queue)
          passed_of_name[Q] = (passed_of_name[Q] or 0) + 1
        end
      end
    end
    return nil
  end

  search.find_next_queue = #ARGV >= first_name and find_queue_by_name or find_queue

  -- Lease up to `limit` jobs of a queue that are not excluded, none younger than `bound`.
  function search.take_jobs(queue, limit, bound)
    limit = math.min(limit, count_free_slots(queue))
    if limit < 1 then -- the index is wrong: the queue is at its limit
      queue.indexed = nil
      mark_for_repair(queue.name)
      reindex_queue(queue)
      return pass(queue)
    end
    local priority = find_head(queue)
    if queue.levels > 0 then limit, bound = math.min(limit, 1), '+inf' end
    if not priority then return pass(queue) end
    local found, skips = find_jobs(queue, priority, limit, bound)
    if #found == 0 then return pass(queue) end
    lease_jobs(queue, priority, found, true)
    queue.skips[priority] = skips
  end

  -- Raise the scores of environments that were passed to the clock of the index: while nothing of them could be served,
  -- they gain no right to be served before all others later.
  function search.level_scores()
    if #ARGV < first_name then
      for E in pairs(passed_envs) do redis.call('ZADD', ENVS, 'XX', 'GT', load_shard().turn, E) end
      return
    end
    for name in pairs(passed) do
      local E, Q = name:match('^(.*):([^:]*)$')
      if class_clocks[Q] then redis.call('ZADD', class_key(Q), 'XX', 'GT', class_clocks[Q], E) end
    end
  end

  -- Lease a few skipped jobs of orphaned tasks that have waited for long: the caller defers them, which shows that no worker
  -- has their task, and lets it find jobs behind them. Called if there was nothing else to lease. Other skipped jobs wait for
  -- the workers that have their task.
  function search.take_overdue(n)
    for i = 1, math.min(n, #overdue) do
      local job = overdue[i]
      if not is_env_blocked(job.queue.environment) and count_free_slots(job.queue) > 0 then
        lease_jobs(job.queue, job.priority, { job.J, job.at }, true)
        reindex_env(job.queue.environment)
      end
    end
  end

  return search
end
