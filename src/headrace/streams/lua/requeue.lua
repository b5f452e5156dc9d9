-- requeue: return unfinished entries of a worker that stops. Counted as reclaim, but the delivery does not count.
--@flags allow-oom
--@include group
-- KEYS, ARGV as in group.lua, then for each entry: id, delivery
-- Returns    for each entry 1 (returned) or 0 (lost)
local answers, returned = {}, 0
for i = 3, #ARGV, 2 do
  local held = is_held(ARGV[i], ARGV[i + 1])
  if held then
    if schedule_retry(ARGV[i], NOW, tonumber(ARGV[i + 1]) - 1) then returned = returned + 1 end
    end_deferral(ARGV[i])
  end
  answers[#answers + 1] = held and 1 or 0
end
add_count('reclaim', returned)
wake_idle_workers()
return answers
