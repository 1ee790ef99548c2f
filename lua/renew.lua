-- Renews the leases of one client's requests, and replies how each of them stands. Without requests it only expires and
-- admits.
-- ARGV: 2.. pairs of request and lease in ms; a lease with a plus sign makes no deadline earlier
-- Returns { next ms, first, standing... }: a token: it holds; -1 unknown: it is over, expired or lost; another number of 0 or
-- less: it waits, and minus that is seq. A read hold was interrupted if its token is less than first, a write hold if its token
-- is less than its standing.
-- Wakes: waiters that enter after an expiry. Twice: renews again.
local refused = begin(KEYS, ARGV)
if refused then return refused end
local requests, known = {}, {}
for i = 2, #ARGV, 2 do
  if not is_lease(tonumber(ARGV[i + 1])) then return { err = 'ERR not a lease' } end
  requests[i / 2] = ARGV[i]
end
clock()

-- It renews its own leases before it expires any, because a late renewal still counts if no other call came before it.
if sole == 1 then
  local present = near
  for i = 1, #requests do
    if requests[i] == holder then
      near = 0
      near = extended(ARGV[2 * i + 1], present)
      known[i] = true
    end
  end
elseif not complete() then
  start_over()
elseif not free() then
  local leases, nearest = {}, false
  known = requests[1] and call('ZMSCORE', LEASES, unpack(requests)) or known
  for i = 1, #requests do
    if known[i] then
      nearest = nearest or tonumber(known[i]) <= near
      leases[#leases + 1] = int(extended(ARGV[2 * i + 1], known[i]))
      leases[#leases + 1] = requests[i]
    end
  end
  if leases[1] then call('ZADD', LEASES, unpack(leases)) end
  -- Otherwise all clients would be told that moment, and would look then.
  if nearest then near = tonumber(call('ZRANGE', LEASES, '0', '0', 'WITHSCORES')[2]) end
end

-- After the clock was stepped back, deadlines lie too far ahead.
local latest = now + cap
local more_far = false
if sole == 1 then
  near = min(near, latest)
elseif not free() then
  local far = call('ZRANGEBYSCORE', LEASES, '(' .. int(latest), '+inf', 'LIMIT', '0', int(EXPIRY_BATCH))
  for _, request in ipairs(far) do call('ZADD', LEASES, int(latest), request) end
  if far[1] then deadline(cap) end   -- near, and the keys outlive that
  more_far = #far == EXPIRY_BATCH
end
sweep()
save()

local reply = { more_far and 0 or next_ms(), first }
local queued = waiting > 0 and requests[1] and call('ZMSCORE', QUEUE, unpack(requests)) or {}
for i = 1, #requests do
  local request, standing = requests[i], -1
  if known[i] and not born then
    if queued[i] then
      standing = -seq
    elseif request == holder or is_write(request) and writes_as(owner_of(request))
      or not is_write(request) and reads > 0 then
      standing = token
    end
  end
  reply[i + 2] = standing
end
return reply
