-- Entry ids, and replies of XINFO.

-- Compare parts of entry ids as text: they may exceed the precision of Lua numbers.
local function is_smaller(x, y) return #x < #y or (#x == #y and x < y) end

-- Return whether entry id a is before b.
local function id_less_than(a, b)
  local a_ms, a_seq = a:match('^(%d+)-(%d+)$')
  local b_ms, b_seq = b:match('^(%d+)-(%d+)$')
  return is_smaller(a_ms, b_ms) or (a_ms == b_ms and is_smaller(a_seq, b_seq))
end

-- Return a reply of XINFO as a table by field name.
local function to_map(flat)
  local found = {}
  for i = 1, #flat, 2 do found[flat[i]] = flat[i + 1] end
  return found
end
