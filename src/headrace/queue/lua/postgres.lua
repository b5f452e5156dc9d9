-- The PostgreSQL that stores cold jobs of this shard.
--@include shard

-- Return whether cold jobs of this shard are in another PostgreSQL than the one with this id ('': unknown).
local function is_wrong_database(id)
  local stored_id = load_shard().postgres
  return stored_id ~= '' and id ~= '' and stored_id ~= id
end
local WRONG_DATABASE = 'WRONGDB jobs of this shard wait in another PostgreSQL'
