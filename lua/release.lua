-- Ends requests, holding or waiting: a release, a cancel, or a grant at the moment of a cancel.
-- ARGV: 4.. requests
-- Returns { next ms, status... }: a token, as a renewal tells it: it held; 1 it waited; 0 unknown: it was over, expired or
-- lost
-- Wakes: the next waiters. Twice: 0 for each request, nothing changes.
load('r:' .. owner, 't:' .. owner, 'f:' .. owner)

if #ARGV == 4 and is_sole(ARGV[4]) then   -- nobody waits
  local status = count_down(ARGV[4], owner)
  set('sole', false)
  note('released', ARGV[4])
  save()
  return { -1, status }
end

local waiting = spread()
if not sound() then start_over() end   -- a field was lost, and counting down would hide that
local reply = { -1 }
for i = 4, #ARGV do
  local request = ARGV[i]
  local status = redis.call('ZREM', LEASES, request) == 1 and drop(request) or 0
  if status > 0 then note(status == 1 and 'left' or 'released', request) end
  reply[#reply + 1] = status
end
if waiting > 0 then reply[1] = sweep(true) end
save()
return reply
