-- Ready jobs per flow. A flow (`detail` in stored names) is a task, flow and flow type, separated by tabs.
--@include keys, chunks

-- Each flow has a sorted set of its ready jobs, so that its count and its oldest job need no search. Changes of one
-- script are collected and written by `save_flows`.
local function find_flow_changes(queue, detail)
  local changes = queue.flow_changes[detail or '']
  if not changes then
    changes = { added = {}, removed = {} }
    queue.flow_changes[detail or ''] = changes
  end
  return changes
end

local function remove_from_flow(queue, J, detail)
  local removed = find_flow_changes(queue, detail).removed
  removed[#removed + 1] = J
end

local function save_flows(queue)
  for detail, changes in pairs(queue.flow_changes) do
    local key = detail_key(queue.E, queue.Q, detail)
    if #changes.added > 0 then
      call_in_chunks('ZADD', key, changes.added)
      if detail ~= queue.known_detail then -- most queues have one flow, which is listed already
        redis.call('SADD', details_key(queue.E, queue.Q), detail)
        queue.known_detail = detail
      end
    end
    if #changes.removed > 0 then
      call_in_chunks('ZREM', key, changes.removed)
      if redis.call('EXISTS', key) == 0 then
        redis.call('SREM', details_key(queue.E, queue.Q), detail)
        if detail == queue.known_detail then queue.known_detail = nil end
      end
    end
  end
end
