-- redrive: move dead letters back to their stream, oldest first. Each letter moves completely or not at all.
--@include group
-- KEYS, ARGV as in group.lua, then most letters, id after which to start ('': the first), then ids of dead
--            letters (none: any)
-- Returns    {moved, id of the last letter that was examined}
local OWN_FIELDS = { ['headrace:id'] = true, ['headrace:reason'] = true, ['headrace:deliveries'] = true }
local moved = 0

local function redrive_letter(letter)
  local fields = {}
  for i = 1, #letter[2], 2 do
    if not OWN_FIELDS[letter[2][i]] then
      fields[#fields + 1] = letter[2][i]
      fields[#fields + 1] = letter[2][i + 1]
    end
  end
  if #fields == 0 then return end -- its entry was deleted before it was buried: there is nothing to run
  redis.call('XADD', STREAM, '*', unpack(fields))
  redis.call('XDEL', DEAD_LETTERS, letter[1])
  moved = moved + 1
end

local last = ARGV[4]
if #ARGV > 4 then
  for i = 5, #ARGV do
    for _, letter in ipairs(redis.call('XRANGE', DEAD_LETTERS, ARGV[i], ARGV[i])) do redrive_letter(letter) end
  end
else
  local from = last == '' and '-' or '(' .. last
  for _, letter in ipairs(redis.call('XRANGE', DEAD_LETTERS, from, '+', 'COUNT', ARGV[3])) do
    redrive_letter(letter)
    last = letter[1]
  end
end
if redis.call('XLEN', DEAD_LETTERS) == 0 then redis.call('DEL', DEAD_LETTERS) end
add_count('redrive', moved)
return { moved, last }
