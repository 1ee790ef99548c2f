-- Tells for how long this server has been the one that the prefix's clients know.
-- KEYS: 1 the run id of the server that they know, and since when (ms)
-- ARGV: 1 this server's run id
-- Returns ms. Twice: the same, a little later.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local run, since = string.match(redis.call('GET', KEYS[1]) or '', '^(%S+) (%d+)$')
if run == ARGV[1] then return math.max(now - since, 0) end
redis.call('SET', KEYS[1], string.format('%s %d', ARGV[1], now))
return 0
