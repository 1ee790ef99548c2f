#!lua name=least
-- The least that a lock with these promises costs in each case, on the state as it is packed. Each function does the whole work
-- of one case: it compares all that tells whether this is that case, and computes what it writes. It can do only that case, so
-- for any other call it replies 0. A goal below this leaves nothing for the other cases, and no script reaches it.
local FORMAT, RETENTION, LONGEST = '<BBBI4I4I4dddddd', 30000, 100000000000
local call, find, format, match, sub, pack, unpack_state

local function least(name, run)
  redis.register_function('least_' .. name, function(keys, args)
    if not pack then
      call = redis.call
      find, format, match, sub, pack, unpack_state = string.find, string.format, string.match, string.sub, struct.pack, struct.unpack
    end
    return run(keys[1], keys, args, args[2])
  end)
end

-- A lock that a request holds, alone or with others to come, or that is free.
least('prepare', function(key, keys, args, request)
  local now = call('TIME')[1] * 1000
  local held = request ~= ''
  local sole = held and args[3] == 'sole'
  local near = held and now + 2 * args[4] or 0
  call('DEL', key, keys[2], keys[3])
  local s = pack(FORMAT, 2, 0, sole and 1 or 0, 0, held and 1 or 0, 0, now, now, now, near, now + 10 * args[4], args[4] + 0)
  call('HSET', key, 's', s .. request, 'policy', '2', 'seq', '0')
  if held and not sole then call('ZADD', keys[3], format('%d', near), request) end
end)

-- A cycle.
least('acquire', function(key, _, args, request)
  local layout, policy, _, reads, writes, waiting, seq, _, _, _, keep, cap = unpack_state(FORMAT, call('HGET', key, 's'))
  local lease_ms = args[3] + 0
  if layout ~= 2 or policy ~= 0 or reads + writes + waiting > 0 or args[1] ~= '' or args[4] or lease_ms <= 0
    or lease_ms >= LONGEST or not find(request, '^w%x+:%d+$') then return 0 end
  local time = call('TIME')
  local us = time[1] * 1000000 + time[2]
  local token, near = seq < us and us or seq + 1, (us - us % 1000) / 1000 + lease_ms
  if near + RETENTION > keep then return 0 end   -- PEXPIREAT would come on top
  if lease_ms > cap then cap = lease_ms end
  call('HSET', key, 's', pack(FORMAT, 2, 0, 1, 0, 1, 0, token, token, token, near, keep, cap) .. request)
  return token
end)
least('release', function(key, _, args, request)
  local s = call('HGET', key, 's')
  local layout, policy, flags, _, writes, _, seq, token, first, _, keep, cap, at = unpack_state(FORMAT, s)
  if layout ~= 2 or policy ~= 0 or flags ~= 1 or writes ~= 1 or args[1] ~= '' or args[3] or sub(s, at) ~= request then return 0 end
  call('HSET', key, 's', pack(FORMAT, 2, 0, 0, 0, 0, 0, seq, token, first, 0, keep, cap))
  return token
end)

-- A hand-over.
least('queue', function(key, keys, args, request)
  local s = call('HGET', key, 's')
  local layout, policy, flags, reads, writes, waiting, seq, token, first, near, keep, cap, at = unpack_state(FORMAT, s)
  local holder, lease_ms = sub(s, at), args[3] + 0
  if layout ~= 2 or policy ~= 0 or flags ~= 0 or writes ~= 1 or reads + waiting > 0 or args[1] ~= '' or args[4] or lease_ms <= 0
    or lease_ms >= LONGEST or not find(request, '^w%x+:%d+$') or find(holder, sub(request, 2), 1, true) then return 0 end
  local time = call('TIME')
  local us = time[1] * 1000000 + time[2]
  local now = (us - us % 1000) / 1000
  local ticket, deadline = seq < us and us or seq + 1, now + lease_ms
  if near <= now or deadline + RETENTION > keep then return 0 end
  if lease_ms > cap then cap = lease_ms end
  if deadline < near then near = deadline end
  call('ZADD', keys[2], format('%d', ticket), request)
  if call('ZADD', keys[3], format('%d', deadline), request) == 0 then return 0 end   -- a late copy
  call('PEXPIREAT', keys[2], format('%d', keep))
  call('HSET', key, 's', pack(FORMAT, 2, 0, 0, 0, 1, 1, ticket, token, first, near, keep, cap) .. holder)
  return { 1, ticket, near - now, ticket, 0 }
end)
least('hand_over', function(key, keys, args, request)
  local s = call('HGET', key, 's')
  local layout, policy, flags, reads, writes, waiting, seq, told, _, near, keep, cap, at = unpack_state(FORMAT, s)
  if layout ~= 2 or policy ~= 0 or flags ~= 0 or writes ~= 1 or reads > 0 or waiting ~= 1 or args[1] ~= '' or args[3]
    or sub(s, at) ~= request or call('ZREM', keys[3], request) == 0 then return 0 end
  local time = call('TIME')
  local us = time[1] * 1000000 + time[2]
  local head = call('ZRANGE', keys[2], '0', '0')[1]
  local client, past = match(head, '^w(%x+):%d+()')
  if near <= (us - us % 1000) / 1000 or not client or past <= #head then return 0 end
  call('DEL', keys[2])
  local token = seq < us and us or seq + 1
  call('HSET', key, 's', pack(FORMAT, 2, 0, 0, 0, 1, 0, token, token, token, near, keep, cap) .. head)
  local channel = sub(key, 1, find(key, '{', 1, true) - 1) .. 'c:' .. client
  if call('PUBLISH', channel, format('%d %s\n%s', token, head, key)) == 0 then return 0 end
  return told
end)

-- A release that lets all waiting readers in.
least('crowd', function(key, keys, args, request)
  local s = call('HGET', key, 's')
  local layout, policy, flags, reads, writes, _, seq, told, _, near, keep, cap, at = unpack_state(FORMAT, s)
  if layout ~= 2 or policy ~= 0 or flags ~= 0 or writes ~= 1 or reads > 0 or args[1] ~= '' or args[3]
    or sub(s, at) ~= request or call('ZREM', keys[3], request) == 0 then return 0 end
  local time = call('TIME')
  local us = time[1] * 1000000 + time[2]
  if near <= (us - us % 1000) / 1000 then return 0 end
  local heads = call('ZRANGE', keys[2], '0', '-1')
  local client = match(heads[1], '^r(%x+):')
  local same, number = 'r' .. client .. ':', #client + 3
  for i = 1, #heads do
    local head = heads[i]
    if find(head, same, 1, true) ~= 1 or find(head, ':', number, true) then return 0 end   -- another client's, or an owner's
  end
  call('DEL', keys[2])
  local token = seq < us and us or seq + 1
  call('HSET', key, 's', pack(FORMAT, 2, 0, 0, #heads, 0, 0, token, token, token, near, keep, cap))
  local channel = sub(key, 1, find(key, '{', 1, true) - 1) .. 'c:' .. client
  if call('PUBLISH', channel, format('%d %s\n%s', token, table.concat(heads, ' '), key)) == 0 then return 0 end
  return told
end)

-- A renewal of one hold.
least('renew', function(key, _, args, request)
  local s = call('HGET', key, 's')
  local layout, policy, flags, reads, writes, _, seq, token, first, _, keep, cap, at = unpack_state(FORMAT, s)
  if layout ~= 2 or policy ~= 0 or flags ~= 1 or writes ~= 1 or args[1] ~= '' or args[4] or sub(s, at) ~= request then return 0 end
  local time, lease_ms = call('TIME'), args[3] + 0
  local us = time[1] * 1000000 + time[2]
  local now = (us - us % 1000) / 1000
  local near = now + lease_ms
  if near + RETENTION > keep then return 0 end
  if lease_ms > cap then cap = lease_ms end
  call('HSET', key, 's', pack(FORMAT, 2, 0, 1, reads, writes, 0, seq, token, first, near, keep, cap) .. request)
  return { near - now, first, token }
end)
