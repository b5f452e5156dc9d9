-- Jobs that leave a place (`ready`, `scheduled`, `leases`, `dead`).

-- Jobs that leave a place, by its key. `save_all` removes them after it has added them to the new one.
local left = {}

local function leave(key, member)
  left[key] = left[key] or {}
  left[key][#left[key] + 1] = member
end
