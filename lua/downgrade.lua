-- Turns a write hold into a read hold, with no moment without a hold.
-- ARGV: 2 the write request, 3 the read request that follows it, 4 lease in ms
-- Returns { next ms, token }; token -1: the write hold is unknown
-- Wakes: the readers at the head of the queue, unless the owner still writes. Twice: the same token; the lease restarts.
local from, to, lease_ms = ARGV[2], ARGV[3], tonumber(ARGV[4])
local refused = begin(KEYS, ARGV)
if refused then return refused end
local named = named_owner(to)
if owner_of(from) ~= named or not find(to, '^r%x+:%d+:[^ \n]+$') then
  return { err = 'ERR not the name of a request to read of the same owner' }
end
clock()
spread()
local known = not free() and call('ZSCORE', LEASES, to)
if not known and writer() == named and is_write(from) and call('ZSCORE', LEASES, from)
  and not call('ZSCORE', QUEUE, from) then
  enter(to, named)
  call('ZADD', LEASES, int(now), to)   -- before the drop, which would delete the only key with an expiry
  drop(from)
  note('released', from)
  known = true
end
if known then call('ZADD', LEASES, int(deadline(lease_ms)), to) end
sweep(known)
save()
return { next_ms(), known and reads > 0 and not (waiting > 0 and call('ZSCORE', QUEUE, to)) and token or -1 }
