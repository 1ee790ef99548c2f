-- Turns a write hold into a read hold, with no moment without a hold.
-- ARGV: 4 the write request, 5 the read request that follows it, 6 lease in ms
-- Returns { next ms, token }; token -1: the write hold is unknown
-- Wakes: the readers at the head of the queue, unless the owner still writes. Twice: the same token; the lease restarts.
local from, to, lease_ms = ARGV[4], ARGV[5], tonumber(ARGV[6])
local owner = owner_of(from)
if owner_of(to) ~= owner or not (string.find(to, '^r%x+:%d+$') or string.find(to, '^r%x+:%d+:[^ \n]+$')) then
  return { err = 'ERR not the name of a request to read of the same owner' }
end
load('r:' .. owner, 't:' .. owner)
spread()
if not sound() then start_over() end   -- a field was lost, and counting down would hide that
local known = redis.call('ZSCORE', LEASES, to)
if not known and state.writer == owner and not redis.call('ZSCORE', QUEUE, from)
  and redis.call('ZREM', LEASES, from) == 1 then
  fresh_leases = true   -- `from` may have been the only one
  grant(to, owner)
  count_down(from, owner)
  note('released', from)
  known = true
end
if known then lease(to, lease_ms) end
local next_ms = sweep(known)
save()
return { next_ms, known and tonumber(state['t:' .. owner] or -1) or -1 }
