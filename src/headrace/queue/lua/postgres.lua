-- Which PostgreSQL holds jobs of this shard.
--@include shard

-- Whether jobs of this shard wait in another PostgreSQL than the one with this id.
local function is_wrong_database(id)
  local known = shard_numbers().postgres
  return known ~= '' and id ~= '' and known ~= id
end
local WRONG_DATABASE = 'WRONGDB jobs of this shard wait in another PostgreSQL'
