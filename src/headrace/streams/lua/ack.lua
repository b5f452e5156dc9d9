-- ack: complete entries.
--@flags allow-oom
--@include group
-- KEYS, ARGV as in group.lua, then for each entry: id, delivery, run ms
-- Returns    for each entry 1 (done) or 0 (lost)
local answers, runs = {}, {}
for i = 3, #ARGV, 3 do
  local held = is_held(ARGV[i], ARGV[i + 1])
  if held then
    redis.call('XACK', STREAM, GROUP, ARGV[i])
    end_deferral(ARGV[i])
    runs[#runs + 1] = ARGV[i + 2]
  end
  answers[#answers + 1] = held and 1 or 0
end
add_count('ack', #runs)
record_samples('runs', runs)
return answers
