-- Reads the state of the lock at this moment. Never writes.
-- ARGV: 2 rank of the first waiter to list, 3 how many waiters to list, 4 how many holders to list,
--       5 a waiter whose place is asked for, or nothing
-- Returns { now us, mode, policy, write holds, holders in all, waiters in all,
--           { request, deadline ms, read holds of its owner, token, ... }, { request, score, deadline ms, ... },
--           { the numbers and the request of the state, see PROTOCOL.md }, with ARGV[5] { rank, score }, or {}: it does not wait }
-- Wakes: nobody. Twice: the state at that time.
local refused = begin(KEYS, ARGV, true)
if refused then return refused end
local from, waiters_most, holders_most = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
-- A writer alone is found without a walk through the queue: each client with a named waiter looks for deadlocks here.
local alone = sole == 0 and writes == 1 and reads == 0 and call('ZSCORE', LEASES, holder)
local holding = sole == 1 and { holder, near } or alone and { holder, alone } or call('ZDIFF', 2, LEASES, QUEUE, 'WITHSCORES')
-- Servers write a round score as 1.8e+12.
local holders, waiters = {}, {}
for i = 1, min(#holding, 2 * holders_most), 2 do
  for _, value in ipairs({ holding[i], int(holding[i + 1]), int(reads_of(owner_of(holding[i]))), int(token) }) do
    holders[#holders + 1] = value
  end
end
local queue = waiters_most > 0 and call('ZRANGE', QUEUE, from, from + waiters_most - 1, 'WITHSCORES') or {}
for i = 1, #queue, 2 do
  for _, value in ipairs({ queue[i], int(queue[i + 1]), int(call('ZSCORE', LEASES, queue[i]) or 0) }) do
    waiters[#waiters + 1] = value
  end
end
local state = {}
for i, number in ipairs({ seq, token, first, near, keep, cap, reads, writes, waiting, sole, more, up }) do
  state[i] = int(number)
end
state[13], state[14], state[15] = holder, int(limit), int(used)
local place
if ARGV[5] then
  local score = call('ZSCORE', QUEUE, ARGV[5])
  place = score and { int(call('ZRANK', QUEUE, ARGV[5])), int(score) } or {}
end
return {
  int(clock()), writes > 0 and 'write' or reads > 0 and 'read' or '', policy > 0 and format('%c', policy) or '', int(writes),
  int(#holding / 2), int(call('ZCARD', QUEUE)), holders, waiters, state, place,
}
