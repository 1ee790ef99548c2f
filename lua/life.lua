-- For how long a server has been the one that this prefix's clients work with.
-- KEYS: 1 the server's run id and since when (ms), as far as they know
-- ARGV: 1 its run id
-- Returns ms. Twice: the same, a little later.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local run, since = string.match(redis.call('GET', KEYS[1]) or '', '^(%S+) (%d+)$')
if run == ARGV[1] then return math.max(now - since, 0) end
redis.call('SET', KEYS[1], string.format('%s %d', ARGV[1], now))
return 0
