-- The time of the server, and how numbers are printed.
local clock = redis.call('TIME')
-- In milliseconds, with the microseconds behind the point: jobs that arrive within one millisecond keep their order.
local NOW = tonumber(clock[1]) * 1000 + tonumber(clock[2]) / 1000

-- Lua prints numbers with 14 digits, too few for these. An argument of a command needs this only if it may have a fraction:
-- the server itself prints whole numbers in full.
local function format_int(number) return string.format('%d', math.floor(number)) end
local function format_float(number) return string.format('%.6f', number) end
