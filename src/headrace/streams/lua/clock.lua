-- The time of the server in milliseconds, and the format of numbers in stored values.
local clock = redis.call('TIME')
local NOW = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)

-- Lua prints numbers with 14 digits, too few for some of these.
local function format_int(number) return string.format('%.0f', number) end
