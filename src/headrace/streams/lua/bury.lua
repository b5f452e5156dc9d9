-- bury: move entries to the dead letters, with their fields and the reason.
--@flags allow-oom
--@include dead_letters
-- KEYS, ARGV as in group.lua, then for each entry: id, delivery, reason
-- Returns    for each entry 1 (buried) or 0 (lost)
local answers, buried = {}, 0
for i = 3, #ARGV, 3 do
  local held = is_held(ARGV[i], ARGV[i + 1])
  if held then
    bury_entry(ARGV[i], ARGV[i + 1], ARGV[i + 2])
    buried = buried + 1
  end
  answers[#answers + 1] = held and 1 or 0
end
add_count('bury', buried)
return answers
