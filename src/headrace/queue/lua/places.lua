-- Removal of jobs from the place that they leave (`ready`, `scheduled`, `leases`, `dead`).

-- Members by key. `save_all` removes them after it has added the jobs to their new place.
local to_remove = {}

local function remove_on_save(key, member)
  to_remove[key] = to_remove[key] or {}
  to_remove[key][#to_remove[key] + 1] = member
end
