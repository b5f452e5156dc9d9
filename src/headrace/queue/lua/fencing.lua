-- Whoever moves jobs between the tiers.
--@include keys

-- Another mover was elected since this token was given out.
local function is_fenced(token) return redis.call('HGET', META, 'mover_token') ~= token end
