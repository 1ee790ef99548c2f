-- Renews the leases of one client's requests, and replies how each of them stands. Without requests it only expires and
-- admits.
-- ARGV: 4.. pairs of request and lease in ms
-- Returns { next ms, standing... }: a token: it holds, and was interrupted if the token is greater than its own; -1 unknown:
-- it is over, expired or lost; 0 or less than -1: it waits, and minus that is seq
-- Wakes: waiters that enter after an expiry. Twice: renews again.
local requests, reply = {}, {}
for i = 4, #ARGV, 2 do requests[#requests + 1] = ARGV[i] end
if #requests == 1 then
  local owner = owner_of(requests[1])
  load('r:' .. owner, 't:' .. owner, 'f:' .. owner)
else
  load()
end

local function standing(request) return tonumber(told(request, owner_of(request)) or -1) end

if #requests == 1 and is_sole(requests[1]) and sound() and count('rcount') + count('wcount') == 1 then
  set('sole', requests[1] .. ' ' .. deadline(tonumber(ARGV[5])))
  save()
  return { -1, standing(requests[1]) }
end

local waiting = spread()
-- It renews its own leases before it expires any, because a late renewal still counts if no other call came before it.
local known = requests[1] and redis.call('ZMSCORE', LEASES, unpack(requests)) or {}
local leases = {}
for i, request in ipairs(requests) do
  if known[i] then
    leases[#leases + 1] = deadline(tonumber(ARGV[2 * i + 3]))
    leases[#leases + 1] = request
  end
end
if leases[1] then redis.call('ZADD', LEASES, unpack(leases)) end

-- After the clock was stepped back, deadlines lie too far ahead.
local last = redis.call('ZRANGE', LEASES, -1, -1, 'WITHSCORES')
local latest, more_far = now_ms() + count('cap'), false
if state.cap and last[1] and tonumber(last[2]) > latest then
  local far = redis.call('ZRANGEBYSCORE', LEASES, '(' .. int(latest), '+inf', 'LIMIT', 0, EXPIRY_BATCH)
  for _, request in ipairs(far) do redis.call('ZADD', LEASES, int(latest), request) end
  deadline(count('cap'))   -- the keys outlive that
  more_far = #far == EXPIRY_BATCH
end
-- Every renewal admits the head if it fits, because `more` may have been lost.
local next_ms = sweep(waiting > 0 and not state.writer)
if more_far then next_ms = 0 end

if not complete() then
  start_over()
  known, next_ms = {}, -1
end
save()

if requests[1] and known[1] ~= nil then
  local queued = redis.call('ZMSCORE', QUEUE, unpack(requests))
  local fields = {}
  for _, request in ipairs(requests) do
    local owner = owner_of(request)
    fields[#fields + 1] = 't:' .. owner
    if not writes(request) then
      fields[#fields + 1] = 'r:' .. owner
      fields[#fields + 1] = 'f:' .. owner
    end
  end
  fetch(fields)
  for i, request in ipairs(requests) do
    reply[i + 1] = not known[i] and -1 or queued[i] and -count('seq') or standing(request)
  end
else
  for i in ipairs(requests) do reply[i + 1] = -1 end
end
reply[1] = next_ms
return reply
