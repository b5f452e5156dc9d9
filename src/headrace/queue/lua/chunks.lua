-- Long argument lists: build one, and send it with as few commands as possible.

-- Append a score (or field) and a member (or value).
local function append_scored(members, score, member)
  local n = #members
  members[n + 1], members[n + 2] = score, member
end

-- Call a command with a key and any number of further arguments, 1000 at a time: Lua cannot unpack many more.
local function call_in_chunks(command, key, members)
  for i = 1, #members, 1000 do
    redis.call(command, key, unpack(members, i, math.min(i + 999, #members)))
  end
end
