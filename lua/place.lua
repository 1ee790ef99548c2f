-- Renews a request of a lock that several servers keep, and puts it where a majority of them agreed that it stands.
-- ARGV: 2 request, 3 lease in ms, 4 its place, a ticket, or '': it stays where it is; 5 the token of the hold that it gives
--       up if the queue has a request before that place, or '': it gives nothing up; 6 what seq must reach at least, or ''
-- Returns as renew of one request: { next ms, first, standing }
-- Wakes: the waiters that now fit. Twice: the same place, and the lease restarts. A hold with a later token stays.
local request, lease_ms, place, given_up, least = ARGV[2], tonumber(ARGV[3]), optional(ARGV[4]), optional(ARGV[5]), optional(ARGV[6])
local refused = begin(KEYS, ARGV)
if refused then return refused end
if not is_lease(lease_ms) then return { err = 'ERR not a lease' } end
for _, number in ipairs({ place or 1, least or 1 }) do
  if not is_ticket(number) then return { err = 'ERR not a ticket' } end
end
clock()

-- Its own lease comes first, as in a renewal.
if sole == 1 then
  if holder == request then
    near = 0
    deadline(lease_ms)
  end
elseif not complete() then
  start_over()
elseif not free() and call('ZSCORE', LEASES, request) then
  call('ZADD', LEASES, int(deadline(lease_ms)), request)
end
sweep()

local function waits() return sole == 0 and waiting > 0 and call('ZSCORE', QUEUE, request) end

-- Its owner is inside by this request alone. The holder may be a hold by which the owner entered, and which is over.
local function is_alone(owner)
  if is_write(request) then return writes == 1 and reads_of(owner) == 0 end
  return reads_of(owner) == 1 and not writes_as(owner)
end

-- nil: the server does not know the request.
local function standing()
  if free() or born then return end
  if sole == 1 then return holder == request and token or nil end
  if not call('ZSCORE', LEASES, request) then return end
  return waits() and -seq or token
end

local stands = standing()
if stands then
  pass(place or 0)
  pass(least or 0)
  -- The hash lives until the server's clock is past this number, too, so that a later token is greater.
  local until_ms = least and (least - least % 1000) / 1000 or 0
  if until_ms + RETENTION > keep then keep, fresh_keep = until_ms + 2 * RETENTION, true end
end
if stands and place then
  local write, named = is_write(request), named_owner(request)
  local score = place + (policy ~= 0 and policy ~= BOUNDED and (policy == 119) ~= write and BAND or 0)
  if stands <= 0 then
    -- The place of an upgrade is before all others.
    if tonumber(waits()) >= 0 then
      call('ZADD', QUEUE, int(score), request)
      sweep(true)
    end
  elseif given_up and waiting > 0 and (write and token or first) <= given_up and is_alone(named or sub(request, 2)) then
    local head = call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES')
    local before = tonumber(head[2] or score)
    if head[1] and (before < score or before == score and precedes(head[1], request)) then
      -- In the queue first, so that it is no read hold any more for an upgrade of its owner.
      call('ZADD', QUEUE, int(score), request)
      count_down(request)
      waiting = waiting + 1
      if named then call('HSET', LOCK, 'q:' .. named, request) end
      note('queued', request)
      sweep(true)
    end
  end
  stands = standing()
end
save()
return { next_ms(), first, stands or -1 }
