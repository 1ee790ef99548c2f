-- Renews the leases of one client's requests, and answers how each of them stands. Without requests: only looks
-- whether there is something to expire or to admit.
-- ARGV: 4.. pairs of request and lease in ms
-- Returns { next ms, standing... }: a token: it holds; -1: unknown: over, expired or lost; 0 or less than -1: it waits,
-- and minus that is seq
-- Wakes: whom an expiry lets in. Twice: renews again.
load()
local requests, reply = {}, {}
for i = 4, #ARGV, 2 do requests[#requests + 1] = ARGV[i] end

if #requests == 1 and is_sole(requests[1]) then
  local token = get('t:' .. owner_of(requests[1]))
  set('sole', requests[1] .. ' ' .. deadline(tonumber(ARGV[5])))
  save()
  return { -1, tonumber(token or -1) }
end

spread()
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
  more_far = #far == EXPIRY_BATCH
end
local next_ms = sweep()
if more_far then next_ms = 0 end

local holding = redis.call('ZCARD', LEASES) - redis.call('ZCARD', QUEUE)
if holding ~= count('rcount') + count('wcount') then
  start_over()
  known, next_ms = {}, -1
end
save()

if requests[1] and known[1] ~= nil then
  local queued = redis.call('ZMSCORE', QUEUE, unpack(requests))
  local fields = {}
  for i, request in ipairs(requests) do fields[i] = 't:' .. owner_of(request) end
  local tokens = redis.call('HMGET', LOCK, unpack(fields))
  for i in ipairs(requests) do
    reply[i + 1] = not known[i] and -1 or queued[i] and -count('seq') or tonumber(tokens[i] or -1)
  end
else
  for i in ipairs(requests) do reply[i + 1] = -1 end
end
reply[1] = next_ms
return reply
