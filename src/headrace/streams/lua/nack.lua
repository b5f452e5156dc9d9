-- nack: fail entries: they stay pending, owned by RETRY_CONSUMER, until their retry is due.
--@flags allow-oom
--@include group
-- KEYS, ARGV as in group.lua, then for each entry: id, delivery, delay ms
-- Returns    for each entry 1 (will be retried) or 0 (lost)
local answers, failed = {}, 0
for i = 3, #ARGV, 3 do
  local held = is_held(ARGV[i], ARGV[i + 1])
  if held then
    schedule_retry(ARGV[i], NOW + tonumber(ARGV[i + 2]), ARGV[i + 1])
    end_deferral(ARGV[i])
    failed = failed + 1
  end
  answers[#answers + 1] = held and 1 or 0
end
add_count('nack', failed)
wake_idle_workers()
return answers
