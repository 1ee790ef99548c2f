-- Acquires the lock: now, or by a place in the queue.
-- ARGV: 2 request, 3 lease in ms, 4 the ticket of a former place in the queue, or '' (with the option u: the token of the
--       read hold that becomes a write hold),
--       5 quarantine: ms for which nobody may enter a lock that looks free
-- Returns the token: it holds; 0: busy; or { status, value, next ms, seq }: 2 it holds and there is more to do, value =
--       token; 0 busy and there is more to do; 1 queued, value = ticket, and a fifth number, how many wait before it;
--       -1 another reader already waits to upgrade; -2 this owner already waits here, value = the number of that request
--       if it is of the same client, otherwise 0; -3 another policy is stored, value = its byte; -4 the read hold of this
--       upgrade is over; -5 as many would stand before it as may, value = how many
-- Wakes: waiters that enter after an expiry. Twice: the same reply, and the lease restarts.
local request, lease_ms, ticket = ARGV[2], tonumber(ARGV[3]), optional(ARGV[4])
local refused = begin(KEYS, ARGV)
if refused then return refused end
local asked, wanted, longest, read_token = 0
if options ~= '' then
  asked = byte(match(options, '[wrn]') or '\0')
  wanted = asked == BOUNDED and tonumber(match(options, 'n(%d+)') or 0)
  if wanted and (wanted < 1 or wanted > MOST) then return { err = 'ERR not a limit' } end
  longest = tonumber(match(options, 'm(%d+)'))
  if find(options, 'u', 1, true) then read_token, ticket = ticket or -1, nil end
end
local mode, named = match(request, '^([rw])%x+:%d+$')
if not mode then
  mode, named = match(request, '^([rw])%x+:%d+:([^ \n*][^ \n]*)$')
  local weighs = not mode and wanted and tonumber(match(request, '^r%x+:%d+:%*([1-9]%d*)$') or 0)
  if not mode and not (weighs and weighs > 1 and weighs <= MOST) then return { err = 'ERR not the name of a request' } end
end

if not is_lease(lease_ms) then return { err = 'ERR not a lease' } end
if ARGV[5] and not is_lease(tonumber(ARGV[5])) then return { err = 'ERR not a quarantine' } end
if ticket and not is_ticket(ticket) then return { err = 'ERR not a ticket' } end
if read_token and not (read_token >= 0 and read_token < BAND) then return { err = 'ERR not a token' } end

clock()
if reads + writes + waiting > 0 then
  local known = sole == 1 and holder == request
  if known then
    local present = near
    near = 0
    near = extended(ARGV[3], present)
  elseif sole == 0 then
    known = call('ZSCORE', LEASES, request)
    if known then call('ZADD', LEASES, int(extended(ARGV[3], known)), request) end
  end
  sweep()
  if known then
    local place = sole == 0 and waiting > 0 and call('ZSCORE', QUEUE, request)
    if place then return answer(1, place % BAND, call('ZRANK', QUEUE, request)) end
    if not complete() then start_over() end
    -- An upgrade may have ended.
    if sole == 1 or not (born or free()) and call('ZSCORE', LEASES, request) then return answer(2, token) end
  end
end

if seq == 0 then
  policy = asked
elseif policy ~= asked then
  return answer(-3, policy)
end
if policy == BOUNDED and limit ~= wanted then   -- who asks last sets the limit
  local grown = wanted > limit
  limit = wanted
  if grown and more == 0 then admit() end
end

-- Quarantine: the server may have forgotten a hold. NOBODY takes its place and never releases.
if ARGV[5] and reads + writes == 0 then
  local nobody = 'w0:0:00000000000000000000000000000000'
  if waiting == 0 then
    sole = 1
    deadline(tonumber(ARGV[5]))
  else
    call('ZADD', LEASES, int(deadline(tonumber(ARGV[5]))), nobody)
  end
  enter(nobody, nil, true)
end

local write = mode == 'w'   -- a request with a weight reads
local held = named and reads_of(named) or 0
if read_token and (held == 0 or first > read_token) then return answer(-4, 0) end   -- others may have written since
-- A new ticket is behind every place in its own band, and only then the head need not be known.
local banded = policy ~= 0 and policy ~= BOUNDED
local head = waiting > 0 and (ticket or banded) and call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES')
if head and not head[1] then start_over() end   -- the queue was lost
if reads + writes + waiting == 0 then
  sole, holder, near = 1, request, 0
  deadline(lease_ms)
else
  local writing = writes > 0
  local inside = held > 0 or writing and writes_as(named or sub(request, 2))
  local upgrade = write and held > 0 and not writing
  local band = upgrade and -BAND or banded and (policy == 119) ~= write and BAND or 0
  local score = (ticket or BAND - 1) + band
  local before = waiting > 0 and not inside
  if before and head then
    local place = tonumber(head[2])
    before = score > place or score == place and precedes(head[1], request)
  end
  if before or writing and not inside or not writing and write and reads > held
    or policy == BOUNDED and reads > 0 and not room(named or sub(request, 2)) then
    local waits = named and waiting > 0 and call('HGET', LOCK, 'q:' .. named)
    if waits and call('ZSCORE', QUEUE, waits) then
      return answer(-2, tonumber(match(waits, '^.' .. match(request, '^.(%x+)') .. ':(%d+)') or 0))
    end
    if upgrade and upgrading() then return answer(-1, 0) end
    if options ~= '' and find(options, 't', 1, true) then
      return answer(0, 0)
    end
    if longest then
      local behind = head and call('ZRANGEBYSCORE', QUEUE, '(' .. int(score), '+inf', 'LIMIT', '0', '1')
      local ahead = upgrade and 0 or behind and behind[1] and call('ZRANK', QUEUE, behind[1]) or waiting
      if ahead >= longest then return answer(-5, ahead) end
    end
    -- Other servers draw that ticket too, if they get the same votes in the same order: see PROTOCOL.md, Numbers.
    if not ticket and find(options, 'q', 1, true) then
      pass(us - us % 16384 + 16383)
      pass(seq - seq % 16 + 15)
    end
    if ticket then pass(ticket) else ticket = draw() end
    spread()
    local add = is_queue_gone() and redis.pcall or call
    if type(add('ZADD', QUEUE, int(ticket + band), request)) == 'table' then
      save()   -- what this call ended and let in
      return { err = 'TRYAGAIN the slot of the lock migrates, and its queue is no key any more' }
    end
    call('ZADD', LEASES, int(deadline(lease_ms)), request)
    if waiting == 0 then call('PEXPIREAT', QUEUE, int(keep)) end
    local ahead = head and call('ZRANK', QUEUE, request) or upgrade and 0 or waiting
    waiting = waiting + 1
    if upgrade then up = 1 end
    if named then call('HSET', LOCK, 'q:' .. named, request) end
    if events then note('queued', request) end
    return answer(1, ticket, ahead)
  end
  spread()
  call('ZADD', LEASES, int(deadline(lease_ms)), request)
end
if ticket then pass(ticket) end
enter(request, named, write)
return answer(2, token)
