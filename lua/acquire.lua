-- Acquires the lock: now, or by a place in the queue.
-- ARGV: 2 request, 3 lease in ms, 4 the ticket of a former place in the queue, or '',
--       5 quarantine: ms for which nobody may enter a lock that looks free
-- Returns the token: it holds; 0: busy; or { status, value, next ms, seq }: 2 it holds and there is more to do, value =
--       token; 1 queued, value = ticket; -1 another reader already waits to upgrade; -2 this owner already waits here, value
--       = the number of that request if it is of the same client, otherwise 0; -3 another policy is stored, value = its byte
-- Wakes: waiters that enter after an expiry. Twice: the same reply, and the lease restarts.
local request, lease_ms, ticket = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4] or '')
local client, named = string.match(request, '^[rw](%x+):%d+(.*)$')
if not client or named ~= '' and not string.find(named, '^:[^ \n]+$') then return { err = 'ERR not the name of a request' } end
named = named ~= '' and string.sub(named, 2) or nil
local refused = begin(KEYS, ARGV)
if refused then return refused end

local function answer(status, value)
  save()
  local next = next_ms()
  if status == 2 and next ~= 0 then return value end
  return { status, value, next, seq }
end

clock()
local known = sole == 1 and holder == request
if sole == 1 then
  if known then near = 0; near = deadline(lease_ms) end
elseif not free() then
  known = call('ZSCORE', LEASES, request)
  if known then call('ZADD', LEASES, int(deadline(lease_ms)), request) end
end
sweep()
if known then
  local place = sole == 0 and waiting > 0 and call('ZSCORE', QUEUE, request)
  if place then return answer(1, place % BAND) end
  if complete() then
    if sole == 1 or holder == request or call('ZSCORE', LEASES, request) then return answer(2, token) end   -- an upgrade may have ended
  else
    start_over()
  end
end

local asked = 0
if options ~= '' then asked = byte(match(options, '[wr]') or '\0') end
if seq == 0 then
  policy = asked
elseif policy ~= asked then
  return answer(-3, policy)
end

-- Quarantine: the server may have forgotten a hold. NOBODY takes its place and never releases.
if ARGV[5] and reads + writes == 0 then
  local nobody = 'w0:0:00000000000000000000000000000000'
  enter(nobody, sub(nobody, 6))
  if waiting == 0 then sole = 1 end
  local at = deadline(tonumber(ARGV[5]))
  if sole == 0 then call('ZADD', LEASES, int(at), nobody) end
end

local write = is_write(request)
local owner = named or sub(request, 2)
local writing = writer()
local held = named and reads_of(named) or 0
local inside = writing == owner or held > 0
local upgrade = write and held > 0 and not writing
local band = upgrade and -BAND or policy ~= 0 and (policy == 119) ~= write and BAND or 0
local before = waiting > 0
if before and (ticket or band ~= 0 or policy ~= 0) then
  -- A new ticket is behind every place in its own band.
  local head = call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES')
  local at = tonumber(head[2])
  local score = (ticket or BAND - 1) + band
  before = score > at or score == at and request > head[1]
end

-- If the data were lost and the clock is behind, new tickets and tokens still come after the old ticket.
local function pass_ticket()
  if ticket and ticket > seq then seq = ticket end
end

if (inside or not before) and (writing == owner or not writing and (reads == 0 or not write or reads == held)) then
  pass_ticket()
  if free() then
    sole, holder = 1, request
  else
    spread()
    call('ZADD', LEASES, int(deadline(lease_ms)), request)
  end
  enter(request, named)
  if sole == 1 then deadline(lease_ms) end
  return answer(2, token)
end
local waits = named and waiting > 0 and call('HGET', LOCK, 'q:' .. named)
if waits and call('ZSCORE', QUEUE, waits) then
  return answer(-2, tonumber(match(waits, '^.' .. client .. ':(%d+)') or 0))
end
if upgrade and up == 1 then
  local head = call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES')
  if head[1] and tonumber(head[2]) < 0 then return answer(-1, 0) end
end
if find(options, 't', 1, true) then
  save()
  return 0
end

pass_ticket()
ticket = ticket or draw()
spread()
fresh_queue = waiting == 0
call('ZADD', QUEUE, int(ticket + band), request)
call('ZADD', LEASES, int(deadline(lease_ms)), request)
waiting = waiting + 1
if upgrade then up = 1 end
if named then call('HSET', LOCK, 'q:' .. named, request) end
note('queued', request)
return answer(1, ticket)
