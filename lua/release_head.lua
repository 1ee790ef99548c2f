-- The fast path of release.lua, put before lock.lua: the frequent cases in straight code, because the functions of lock.lua
-- alone cost as much. It has the same result as they have; the model in tests/attack checks this. It writes nothing before it
-- is certain that its case applies. Otherwise the whole script follows.
local owner
do
  local request = ARGV[4]
  local named = string.match(request, '^[^:]*:[^:]*:(.*)$')
  owner = named or string.sub(request, 2)
  local read, token, first = 'r:' .. owner, 't:' .. owner, 'f:' .. owner
  local hash = redis.call('HMGET', KEYS[1], 'rcount', 'writer', 'wcount', 'seq', 'more', 'sole', read, token, first)
  local rcount, writer, seq, sole = hash[1], hash[2], hash[4], hash[6]
  if #ARGV == 4 and ARGV[3] ~= '1' and not hash[5] then
    local writes = writer == owner and hash[3] == '1' and not rcount
    local reads = not writer and rcount and hash[7] == '1'
    local told = tonumber(reads and hash[9] or hash[8] or 0)
    if sole then
      -- Nobody else holds or waits.
      if string.find(sole, request .. ' ', 1, true) == 1 then
        if writes then
          redis.call('HDEL', KEYS[1], 'mode', 'writer', 'wcount', token, 'sole')
          return { -1, told }
        elseif reads and rcount == '1' then
          redis.call('HDEL', KEYS[1], 'mode', 'rcount', read, token, 'sole')
          return { -1, told }
        end
      end
    elseif not named and (writes and string.byte(request) == 119
      or reads and rcount == '1' and string.byte(request) == 114) then
      -- The only holder leaves.
      local to = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
      if not to then
        -- Nobody waits. If the request does not hold, this changes nothing.
        if redis.call('ZREM', KEYS[3], request) == 1 then
          redis.call('HDEL', KEYS[1], 'mode', 'writer', 'wcount', 'rcount', read, token, first)
          return { -1, told }
        end
      elseif string.byte(to) == 119 and seq and not redis.call('ZSCORE', KEYS[2], request) then
        -- The head of the queue, a writer, enters. No lease has ended. The request that leaves must not wait: a late copy
        -- of its acquire may have queued it while its owner holds by another request.
        local colon = string.find(to, ':', 1, true)
        local leases = redis.call('ZRANGE', KEYS[3], 0, 1, 'WITHSCORES')
        local nearest = leases[1] == request and leases[4] or leases[2]
        local time = redis.call('TIME')
        local us = time[1] * 1000000 + time[2]
        local next_ms = tonumber(nearest or 0) - math.floor(us / 1000)
        if next_ms > 0 and not string.find(to, ':', colon + 1, true) and redis.call('ZREM', KEYS[3], request) == 1 then
          local text, next_owner = string.format('%d', math.max(seq + 1, us)), string.sub(to, 2)
          redis.call('ZREM', KEYS[2], to)
          if writes then
            redis.call('HSET', KEYS[1], 'writer', next_owner, 't:' .. next_owner, text, 'seq', text)
            redis.call('HDEL', KEYS[1], token, first)
          else
            redis.call('HSET', KEYS[1], 'mode', 'write', 'writer', next_owner, 'wcount', '1', 't:' .. next_owner, text, 'seq', text)
            redis.call('HDEL', KEYS[1], 'rcount', read, token, first)
          end
          redis.pcall(ARGV[1], ARGV[2] .. string.sub(to, 2, colon - 1), to .. ' ' .. text .. '\n' .. KEYS[1])
          return { next_ms, told }
        end
      end
    elseif reads and not named and string.byte(request) == 114 and redis.call('ZCARD', KEYS[2]) == 0
      and redis.call('ZREM', KEYS[3], request) == 1 then
      -- A reader leaves, others stay, and nobody waits.
      redis.call('HSET', KEYS[1], 'rcount', rcount - 1)
      redis.call('HDEL', KEYS[1], read, token, first)
      return { -1, told }
    end
  end
end
