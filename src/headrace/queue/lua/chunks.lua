-- Arguments for one command instead of many.
local function append_scored(members, score, member)
  local n = #members
  members[n + 1], members[n + 2] = score, member
end

-- Arguments for one command instead of many; the server takes some thousands at a time.
local function call_in_chunks(command, key, members)
  for i = 1, #members, 1000 do
    redis.call(command, key, unpack(members, i, math.min(i + 999, #members)))
  end
end
