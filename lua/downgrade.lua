-- Turns a write hold into a read hold, with no moment without a hold.
-- ARGV: 2 the write request, 3 the read request that follows it, 4 lease in ms
-- Returns { next ms, the number that a release would tell the read request }; -1: the write hold is unknown
-- Wakes: the readers at the head of the queue, unless the owner still writes. Twice: the same number; the lease restarts.
local from, to, lease_ms = ARGV[2], ARGV[3], tonumber(ARGV[4])
local refused = begin(KEYS, ARGV)
if refused then return refused end
local named = named_owner(to)
if owner_of(from) ~= named or not find(to, '^r%x+:%d+:[^ \n]+$') then
  return { err = 'ERR not the name of a request to read of the same owner' }
end
if not is_lease(lease_ms) then return { err = 'ERR not a lease' } end
clock()
spread()
local known = not free() and call('ZSCORE', LEASES, to)
local holds = not known and is_write(from) and writes_as(named) and call('ZSCORE', LEASES, from)
  and not call('ZSCORE', QUEUE, from)
if known or holds then call('ZADD', LEASES, int(deadline(lease_ms)), to) end
if holds then
  enter(to, named, false)
  drop(from)
  note('released', from)
end
sweep(known or holds)
save()
holds = (known or holds) and reads > 0 and not (waiting > 0 and call('ZSCORE', QUEUE, to))
return { next_ms(), holds and first or -1 }
