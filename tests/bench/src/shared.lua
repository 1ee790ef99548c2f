-- A cycle of a free lock, by the state as lock.lua keeps it for all cases, and nothing of those cases: begin() reads it, save()
-- writes it. The function compares what tells whether this is that case; for any other call it replies 0. So this is the least
-- for scripts that say nothing twice.
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
