-- Renews the leases of one client's requests, and answers how each of them stands. Without requests: only looks
-- whether there is something to expire or to admit.
-- ARGV: 4.. pairs of request and lease in ms
-- Returns { next ms, standing... }: a token: it holds, and was interrupted if that is greater than its own; -1: unknown: over, expired or lost; 0 or less than -1: it waits,
-- and minus that is seq
-- Wakes: whom an expiry lets in. Twice: renews again.
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
-- First its own leases, then the others': late but not yet taken over is not lost.
local known = requests[1] and redis.call('ZMSCORE', LEASES, unpack(requests)) or {}
local leases = {}
for i, request in ipairs(requests) do
  if known[i] then
    leases[#leases + 1] = deadline(tonumber(ARGV[2 * i + 3]))
    leases[#leases + 1] = request
  end
end
if leases[1] then redis.call('ZADD', LEASES, unpack(leases)) end

-- A clock that was stepped back has left deadlines too far ahead.
local last = redis.call('ZRANGE', LEASES, -1, -1, 'WITHSCORES')
local latest, more_far = now_ms() + count('cap'), false
if state.cap and last[1] and tonumber(last[2]) > latest then
  local far = redis.call('ZRANGEBYSCORE', LEASES, '(' .. int(latest), '+inf', 'LIMIT', 0, EXPIRY_BATCH)
  for _, request in ipairs(far) do redis.call('ZADD', LEASES, int(latest), request) end
  deadline(count('cap'))   -- the keys live on until after that
  more_far = #far == EXPIRY_BATCH
end
-- Whoever renews lets the head in if it was left out: `more` may have been lost.
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
