-- Jobs that leave a place (`ready`, `scheduled`, `leases`, `dead`).

-- Jobs that leave a place, by its key. `save_all` removes them after it has added them to the new one.
local to_remove = {}

local function remove_on_save(key, member)
  to_remove[key] = to_remove[key] or {}
  to_remove[key][#to_remove[key] + 1] = member
end
