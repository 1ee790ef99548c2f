-- A cycle of a free lock and a hand-over, by the state as lock.lua keeps it for all cases, and nothing of those cases: begin()
-- reads it, save() writes it. Each function compares what tells whether this is its case; for any other call it replies 0. So
-- this is the least for scripts that say nothing twice.
local function shared(name, run)
  redis.register_function('shared_' .. name, function(keys, args) return begin(keys, args) or run(args, args[2]) end)
end

shared('acquire', function(args, request)
  local lease_ms = tonumber(args[3])
  if reads + writes + waiting > 0 or policy ~= 0 or options ~= '' or args[4] or not is_lease(lease_ms)
    or not find(request, '^w%x+:%d+$') then return 0 end
  clock()
  sole, holder, near, writes = 1, request, 0, 1
  deadline(lease_ms)
  token = draw()
  first = token
  save()
  return token
end)

shared('release', function(args, request)
  if sole ~= 1 or writes ~= 1 or policy ~= 0 or options ~= '' or args[3] or holder ~= request then return 0 end
  local told = token
  sole, writes, near, holder = 0, 0, 0, ''
  save()
  return told
end)

shared('queue', function(args, request)
  local lease_ms = tonumber(args[3])
  if writes ~= 1 or reads + waiting > 0 or policy ~= 0 or options ~= '' or args[4] or not is_lease(lease_ms)
    or not find(request, '^w%x+:%d+$') or writes_as(sub(request, 2)) then return 0 end
  clock()
  if near <= now then return 0 end
  spread()
  local ticket = draw()
  call('ZADD', QUEUE, int(ticket), request)
  if call('ZADD', LEASES, int(deadline(lease_ms)), request) == 0 then return 0 end   -- a late copy
  call('PEXPIREAT', QUEUE, int(keep))
  waiting = 1
  save()
  return { 1, ticket, next_ms(), seq, 0 }
end)

shared('hand_over', function(args, request)
  if sole ~= 0 or writes ~= 1 or reads > 0 or waiting ~= 1 or policy ~= 0 or options ~= '' or args[3] or holder ~= request
    or call('ZREM', LEASES, request) == 0 then return 0 end
  local told = token
  clock()
  local head = call('ZRANGE', QUEUE, '0', '0')[1]
  local client, past = match(head, '^w(%x+):%d+()')
  if near <= now or not client or past <= #head then return 0 end
  call('DEL', QUEUE)
  token, holder, waiting = draw(), head, 0
  first = token
  tell(head, token, client)
  save()
  return told
end)
