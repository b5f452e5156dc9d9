-- reserve_ids: register ids that callers chose, as pending, before PostgreSQL commits the jobs. The caller has inserted
-- them into the table cold_ids in the same transaction, so an entry that exists is outdated.
--@include recovery, cold_ids
-- KEYS[1]    hash of the environment (routes the script)
-- ARGV       prefix, maxlen, E, most bytes of the registered ids of the shard, token, then J of each job
-- Returns    those J that jobs in Valkey have; then nothing is registered
-- Errors     IDSFULL: the registered ids take too many bytes. Nothing is written.
local E, max_bytes, token = ARGV[3], tonumber(ARGV[4]), ARGV[5]
local ids, used = {}, {}
for i = 6, #ARGV do
  ids[#ids + 1] = ARGV[i]
  local EJ = E .. ':' .. ARGV[i]
  if redis.call('EXISTS', body_key(EJ)) == 1 and is_complete(EJ) then used[#used + 1] = ARGV[i] end
end
if #used > 0 then return used end

local before, entries, bytes = read_cold_ids(E, ids), {}, 0
for _, J in ipairs(ids) do
  if not before[J] then bytes = bytes + measure_cold_id(J) end
  append_scored(entries, J, format_pending(token))
end
if not cold_ids_fit(E, bytes, max_bytes) then return redis.error_reply('IDSFULL too many registered ids') end
put_cold_ids(E, entries, bytes)
return {}
