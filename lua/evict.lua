-- Throws an owner out: all it holds and all it waits for. An operator's last resort; looks through all requests.
-- ARGV: 4 owner
-- Returns { next ms, number of requests }
-- Wakes: the evicted (token 0), and who is next. Twice: 0 requests, nothing changes.
local owner = ARGV[4]
load('r:' .. owner, 't:' .. owner)
spread()
local evicted, cursor = {}, '0'
repeat
  local page = redis.call('ZSCAN', LEASES, cursor, 'COUNT', 1000)
  cursor = page[1]
  for i = 1, #page[2], 2 do
    if owner_of(page[2][i]) == owner then evicted[page[2][i]] = true end
  end
until cursor == '0'

local number = 0
for request in pairs(evicted) do
  redis.call('ZREM', LEASES, request)
  drop(request)
  tell(request, 0)
  note('evicted', request)
  number = number + 1
end
local next_ms = sweep(number > 0)
save()
return { next_ms, number }
