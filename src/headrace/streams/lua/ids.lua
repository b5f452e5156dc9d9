-- Whether one entry id is before another. As text: parts may be larger than what Lua's numbers hold.
local function smaller(x, y) return #x < #y or (#x == #y and x < y) end

local function less(a, b)
  local a_ms, a_seq = a:match('^(%d+)-(%d+)$')
  local b_ms, b_seq = b:match('^(%d+)-(%d+)$')
  return smaller(a_ms, b_ms) or (a_ms == b_ms and smaller(a_seq, b_seq))
end

-- What XINFO answers, by name.
local function fields_of(flat)
  local found = {}
  for i = 1, #flat, 2 do found[flat[i]] = flat[i + 1] end
  return found
end
