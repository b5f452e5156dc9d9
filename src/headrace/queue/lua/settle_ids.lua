-- settle_ids: change registered ids after PostgreSQL has committed, or has not. A change that names a token applies only to
-- the entry with this token, so it cannot affect a later job of the same id.
--@flags allow-oom
--@include cold_ids
-- KEYS[1]    hash of the environment (routes the script)
-- ARGV       prefix, maxlen, E, most bytes of the registered ids of the shard, then for each change: J, token, and
--            `confirm` or `remove` (the entry with the token), `pend` (register as pending, if there is no entry) or `set`
--            (register as confirmed, whatever the entry is)
-- Returns    {changed entries, ids that were not registered because the bytes are used up}
local E, max_bytes = ARGV[3], tonumber(ARGV[4])
local ids, seen = {}, {}
for i = 5, #ARGV, 3 do
  if not seen[ARGV[i]] then ids[#ids + 1], seen[ARGV[i]] = ARGV[i], true end
end
local before = read_cold_ids(E, ids)
local after = {}
for J, entry in pairs(before) do after[J] = entry end
for i = 5, #ARGV, 3 do
  local J, token, change = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local entry = after[J]
  if change == 'set' then
    after[J] = 'c' .. token
  elseif change == 'pend' then
    after[J] = entry or format_pending(token)
  elseif entry and get_cold_id_token(entry) == token then
    after[J] = change == 'confirm' and 'c' .. token
  end
end

local entries, bytes, removed, removed_bytes, refused = {}, 0, {}, 0, 0
for _, J in ipairs(ids) do
  local size = measure_cold_id(J)
  if before[J] and not after[J] then
    removed[#removed + 1], removed_bytes = J, removed_bytes + size
  elseif after[J] and not before[J] then
    if cold_ids_fit(E, bytes + size, max_bytes) then
      append_scored(entries, J, after[J])
      bytes = bytes + size
    else
      refused = refused + 1
    end
  elseif after[J] ~= before[J] then
    append_scored(entries, J, after[J])
  end
end
remove_cold_ids(E, removed, removed_bytes)
put_cold_ids(E, entries, bytes)
return { #removed + #entries / 2, refused }
