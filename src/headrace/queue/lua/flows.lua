-- Which jobs wait, by (task, flow, flow type).
--@include keys, chunks

-- Which jobs wait, by (task, flow, flow type): a sorted set each, so that counts and the oldest need no search. The
-- changes of one call are written together.
local function detail_of(queue, detail)
  local changes = queue.details[detail or '']
  if not changes then
    changes = { added = {}, removed = {} }
    queue.details[detail or ''] = changes
  end
  return changes
end

local function leave_detail(queue, J, detail)
  local removed = detail_of(queue, detail).removed
  removed[#removed + 1] = J
end

local function save_details(queue)
  for detail, changes in pairs(queue.details) do
    local key = detail_key(queue.E, queue.Q, detail)
    if #changes.added > 0 then
      in_chunks('ZADD', key, changes.added)
      if detail ~= queue.known_detail then -- most queues have one, and it is listed since long
        redis.call('SADD', details_key(queue.E, queue.Q), detail)
        queue.known_detail = detail
      end
    end
    if #changes.removed > 0 then
      in_chunks('ZREM', key, changes.removed)
      if redis.call('EXISTS', key) == 0 then
        redis.call('SREM', details_key(queue.E, queue.Q), detail)
        if detail == queue.known_detail then queue.known_detail = nil end
      end
    end
  end
end
