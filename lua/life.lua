-- Tells for how long this server has been the one that the prefix's clients know.
-- KEYS: 1 the run id of the server that they know, and since when (ms); 2 the stamp of its quorum, if it is in one
-- ARGV: 1 this server's run id, 2 the stamp
-- Returns ms. Twice: the same, a little later.
if KEYS[2] then
  local stamp = redis.call('GET', KEYS[2])
  if stamp and stamp ~= ARGV[2] then return { err = 'QUORUM the server belongs to another quorum: ' .. stamp } end
  if not stamp then redis.call('SET', KEYS[2], ARGV[2]) end
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local run, since = string.match(redis.call('GET', KEYS[1]) or '', '^(%S+) (%d+)$')
if run == ARGV[1] then return math.max(now - since, 0) end
redis.call('SET', KEYS[1], string.format('%s %d', ARGV[1], now))
return 0
