-- The head of acquire.lua, before lock.lua: a free lock whose keys need no new TTL, for speed (the functions of lock.lua
-- alone cost as much as this). Does what grant() does there; a test holds the two together.
local HASH, owner
do
  local request, lease_ms = ARGV[4], tonumber(ARGV[5])
  local first = string.find(request, ':', 1, true)
  local second = string.find(request, ':', first + 1, true)
  owner = string.sub(request, second and second + 1 or 2)
  local token = 't:' .. owner
  HASH = redis.call('HMGET', KEYS[1], 'mode', 'rcount', 'writer', 'wcount', 'seq', 'up', 'policy', 'more', 'keep', 'cap',
    'sole', 'r:' .. owner, token)
  local mode, seq, policy, more, keep, cap = HASH[1], HASH[5], HASH[7], HASH[8], HASH[9], HASH[10]
  if not mode and not more and seq and (policy or '') == ARGV[7] and tonumber(cap or 0) >= lease_ms and ARGV[3] ~= '1' then
    local time = redis.call('TIME')
    local us = time[1] * 1000000 + time[2]
    local deadline = math.floor(us / 1000) + lease_ms
    if deadline + 30000 <= tonumber(keep or 0) then
      local number = math.max(seq + 1, us)
      local text, sole = string.format('%d', number), string.format('%s %d', request, deadline)
      if string.byte(request) == 119 then
        redis.call('HSET', KEYS[1], 'mode', 'write', 'writer', owner, 'wcount', '1', token, text, 'seq', text, 'sole', sole)
      else
        redis.call('HSET', KEYS[1], 'mode', 'read', 'rcount', '1', 'r:' .. owner, '1', token, text, 'seq', text, 'sole', sole)
      end
      return { 2, number, -1, number }
    end
  end
end
