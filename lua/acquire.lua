-- Acquires the lock: now, or by a place in the queue.
-- ARGV: 4 request, 5 lease in ms, 6 'try' or 'queue', 7 policy ('' Fifo, 'w' WriterFirst, 'r' ReaderFirst),
--       8 the ticket of a former place in the queue, or '', 9 quarantine: ms for which nobody may enter a lock that looks free
-- Returns { status, value, next ms, seq }: 2 granted, value = token; 1 queued, value = ticket; 0 busy;
--       -1 another reader already waits to upgrade; -2 this owner already waits here, value = the number of that request if
--       it is of the same client, otherwise 0; -3 another policy is stored, value = its code's byte or 0
-- Wakes: waiters that enter after an expiry. Twice: the same reply, and the lease restarts.
local request, lease_ms, try, policy, ticket = ARGV[4], tonumber(ARGV[5]), ARGV[6] == 'try', ARGV[7], ARGV[8]
local NOBODY = '00000000000000000000000000000000'
local BAND = 4503599627370496   -- 2^52: more than any ticket until the year 2112
local named = named_owner(request)
local known, next_ms, head = false, -1, {}
load('r:' .. owner, 't:' .. owner)

local function answer(status, value)
  save()
  return { status, tonumber(value or 0), next_ms, count('seq') }
end

if state.mode or state.more or not state.seq or not sound() then
  spread()
  known = redis.call('ZSCORE', LEASES, request)
  if known then lease(request, lease_ms) end
  next_ms = sweep()
  if next_ms < 0 and state.mode then start_over() end   -- held, and nobody has a lease
  if known then
    local place = redis.call('ZSCORE', QUEUE, request)
    if place then return answer(1, place % BAND) end
    local token = told(request, owner)
    if token then
      if complete() then return answer(2, get('t:' .. owner) or token) end
      start_over()
      next_ms = -1
    end
    redis.call('ZREM', LEASES, request)   -- a key or a field was lost: so was the hold
    fresh_leases = true
  end
  head = redis.call('ZRANGE', QUEUE, 0, 0, 'WITHSCORES')
end

if state.seq then
  if (state.policy or '') ~= policy then return answer(-3, string.byte(state.policy or '')) end
elseif policy ~= '' then
  set('policy', policy)
end

-- Quarantine: the server may have forgotten a hold. NOBODY takes its place and never releases.
if ARGV[9] and not state.mode then
  spread()
  local held = 'w0:0:' .. NOBODY
  grant(held, NOBODY)
  lease(held, tonumber(ARGV[9]))
  fresh_leases, next_ms = true, tonumber(ARGV[9])
end

local inside = state.writer == owner or count('r:' .. owner) > 0
local upgrade = inside and state.writer ~= owner and writes(request)
local band = 0
if upgrade then
  band = -BAND
elseif policy ~= '' and (policy == 'w') ~= writes(request) then
  band = BAND
end
-- A new ticket is behind every place in its own band.
local first = not head[1] or band < math.floor(head[2] / BAND) * BAND
  or (ticket ~= '' and tonumber(ticket) + band < tonumber(head[2]))

-- If the data were lost and the clock is behind, new tickets and tokens still come after the old ticket.
local function pass_ticket()
  if ticket ~= '' and tonumber(ticket) > count('seq') then set('seq', ticket) end
end

if fits(request, owner) and (inside or first) then
  pass_ticket()
  -- A free lock has no queue and no leases, so this is its only request.
  local sole = not state.mode and next_ms < 0
  local token = grant(request, owner)
  if sole then
    set('sole', request .. ' ' .. deadline(lease_ms))
  else
    lease(request, lease_ms)
  end
  return answer(2, token)
end
local waits = named and get('q:' .. owner)
if waits and redis.call('ZSCORE', QUEUE, waits) then
  return answer(-2, string.match(waits, '^.' .. string.match(request, '^.(%x+)') .. ':(%d+)'))
end
if upgrade and head[1] and tonumber(head[2]) < 0 then return answer(-1) end   -- another upgrade is the head
if try then return answer(0) end

pass_ticket()
if ticket == '' then ticket = next_seq() end
redis.call('ZADD', QUEUE, int(tonumber(ticket) + band), request)
if named then set('q:' .. owner, request) end
lease(request, lease_ms)
if not head[1] and state.keep then redis.call('PEXPIREAT', QUEUE, state.keep) end
next_ms = next_ms < 0 and lease_ms or math.min(next_ms, lease_ms)
note('queued', request)
return answer(1, ticket)
