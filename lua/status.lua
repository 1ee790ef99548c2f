-- Reads the state of the lock at this moment. Never writes.
-- ARGV: 4 rank of the first waiter to list, 5 how many waiters to list, 6 how many holders to list
-- Returns { now us, mode, policy, write holds, holders in all, waiters in all,
--           { request, deadline ms, read holds of its owner, token, ... }, { request, score, deadline ms, ... } }
-- Wakes: nobody. Twice: the state at that time.
local first, waiters_most, holders_most = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
load()
local holding = redis.call('ZDIFF', 2, LEASES, QUEUE, 'WITHSCORES')
if state.sole then holding = { string.match(state.sole, '^(.+) (%d+)$') } end
local holders = {}
for i = 1, math.min(#holding, 2 * holders_most), 2 do
  local owner = owner_of(holding[i])
  local of_owner = redis.call('HMGET', LOCK, 'r:' .. owner, 't:' .. owner)
  for _, value in ipairs({ holding[i], holding[i + 1], of_owner[1] or '0', of_owner[2] or '0' }) do
    holders[#holders + 1] = value
  end
end
local queue = redis.call('ZRANGE', QUEUE, first, first + waiters_most - 1, 'WITHSCORES')
local waiters = {}
for i = 1, #queue, 2 do
  for _, value in ipairs({ queue[i], queue[i + 1], redis.call('ZSCORE', LEASES, queue[i]) or '0' }) do
    waiters[#waiters + 1] = value
  end
end
return {
  int(clock()), state.mode or '', state.policy or '', state.wcount or '0', int(#holding / 2),
  int(redis.call('ZCARD', QUEUE)), holders, waiters,
}
