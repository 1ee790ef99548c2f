-- The fast path of acquire.lua, put before lock.lua: the frequent cases in straight code, because the functions of lock.lua
-- alone cost as much. It has the same result as they have; the model in tests/attack checks this. It writes nothing before it
-- is certain that its case applies. Otherwise the whole script follows.
local owner
do
  local request, lease_ms = ARGV[4], tonumber(ARGV[5])
  local named = string.match(request, '^[rw]%x+:%d+(.*)$')
  if not named or named ~= '' and not string.find(named, '^:[^ \n]+$') then
    return { err = 'ERR not the name of a request' }
  end
  named = named ~= '' and string.sub(named, 2)
  owner = named or string.sub(request, 2)
  local token, write = 't:' .. owner, string.byte(request) == 119
  local hash = redis.call('HMGET', KEYS[1], 'mode', 'rcount', 'writer', 'seq', 'policy', 'more', 'keep', 'cap', 'sole',
    'r:' .. owner)
  local mode, rcount, writer, seq, keep = hash[1], hash[2], hash[3], hash[4], hash[7]
  if not ARGV[9] and not hash[6] and seq and (hash[5] or '') == ARGV[7] and tonumber(hash[8] or 0) >= lease_ms and ARGV[3] ~= '1'
    and ARGV[8] == '' and mode == (writer and 'write' or rcount and 'read') then
    local time = redis.call('TIME')
    local us = time[1] * 1000000 + time[2]
    local now = math.floor(us / 1000)
    local deadline = now + lease_ms
    if deadline + 30000 <= tonumber(keep or 0) then
      local number = math.max(seq + 1, us)
      local text = string.format('%d', number)
      if not mode then
        -- A free lock.
        local sole = string.format('%s %d', request, deadline)
        if write then
          redis.call('HSET', KEYS[1], 'mode', 'write', 'writer', owner, 'wcount', '1', token, text, 'seq', text, 'sole', sole)
        else
          redis.call('HSET', KEYS[1], 'mode', 'read', 'rcount', '1', 'r:' .. owner, '1', token, text, 'seq', text, 'sole', sole)
        end
        return { 2, number, -1, number }
      elseif not named and ARGV[7] == '' and writer ~= owner and not hash[10] then
        -- Others hold the lock. No lease has ended, and the request is new.
        local waiting, nearest = redis.call('ZCARD', KEYS[2]), redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
        local sole, ends = nil, nearest[2]
        if hash[9] then sole, ends = string.match(hash[9], '^(.+) (%d+)$') end
        local next_ms = ends and tonumber(ends) - now
        local new = sole and waiting == 0 and not nearest[1]
          or nearest[1] and not sole and not redis.call('ZSCORE', KEYS[3], request)
        if new and next_ms and next_ms > 0 then
          if sole then
            -- The sole request gets company: see spread().
            redis.call('HDEL', KEYS[1], 'sole')
            redis.call('ZADD', KEYS[3], ends, sole)
            redis.call('PEXPIREAT', KEYS[3], keep)
          end
          if waiting == 0 and not writer and not write then
            -- A reader beside readers.
            redis.call('HSET', KEYS[1], 'rcount', rcount + 1, 'r:' .. owner, '1', token, text, 'seq', text)
            redis.call('ZADD', KEYS[3], string.format('%d', deadline), request)
            return { 2, number, next_ms, number }
          elseif ARGV[6] == 'try' then
            return { 0, 0, next_ms, tonumber(seq) }
          end
          redis.call('HSET', KEYS[1], 'seq', text)
          redis.call('ZADD', KEYS[2], text, request)
          redis.call('ZADD', KEYS[3], string.format('%d', deadline), request)
          if waiting == 0 then redis.call('PEXPIREAT', KEYS[2], keep) end
          return { 1, number, math.min(next_ms, lease_ms), number }
        end
      end
    end
  end
end
