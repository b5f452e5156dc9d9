-- The time of the server, and number formats for stored values.
local clock = redis.call('TIME')
-- In milliseconds, with microseconds as the fraction, so that jobs of one millisecond keep their order.
local NOW = tonumber(clock[1]) * 1000 + tonumber(clock[2]) / 1000

-- Lua prints numbers with 14 digits, too few for these. An argument of a command needs a format only if it may have a
-- fraction: the server prints whole numbers in full.
local function format_int(number) return string.format('%d', math.floor(number)) end
local function format_float(number) return string.format('%.6f', number) end
