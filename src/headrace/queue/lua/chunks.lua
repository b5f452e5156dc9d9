-- Arguments for one command instead of many.
local function add_scored(members, score, J)
  local n = #members
  members[n + 1], members[n + 2] = score, J
end

-- Arguments for one command instead of many; the server takes some thousands at a time.
local function in_chunks(command, key, members)
  for i = 1, #members, 1000 do
    redis.call(command, key, unpack(members, i, math.min(i + 999, #members)))
  end
end
