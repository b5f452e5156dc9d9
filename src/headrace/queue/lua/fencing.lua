-- Fencing of movers.
--@include keys

-- Return whether another mover was elected after the one with this token.
local function is_fenced(token) return redis.call('HGET', META, 'mover_token') ~= token end
