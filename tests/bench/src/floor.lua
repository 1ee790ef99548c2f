#!lua name=floor
-- The floor of each figure of the server: the commands of that case, and nothing else. No script that does the same to the
-- same keys can cost less. Keys, arguments and replies are ours. What a script has to compute is a constant as long.
local TOKEN, DEADLINE, CHANNEL = '1760400000123456', '1760400010123', 'floor:c:0123456789abcdf'
local FREE = '012345678901234567890123456789012345678901234567890123456789012'   -- 63 bytes, as the packed numbers
local HELD, OTHER = FREE .. 'w0123456789abcde:1000', 'w0123456789abcdf:1000'
local call

local function floor(name, run)
  redis.register_function('floor_' .. name, function(keys, args)
    call = redis.call
    return run(keys, args)
  end)
end

-- A lock as a client's first cycle leaves it, with the lease of a holder.
floor('prepare', function(keys, args)
  call('DEL', keys[1], keys[2], keys[3])
  call('HSET', keys[1], 's', FREE, 'policy', '2', 'seq', '0')
  if args[2] ~= '' then call('ZADD', keys[3], DEADLINE, args[2]) end
end)

-- As part of a script that ends like a release.
local function part(name, run)
  floor(name, function(keys, args)
    run(keys, args)
    return 1760400000123456
  end)
end

part('empty', function() end)

-- 100 times: the price of one, with a call of Lua.
local function price(name, run)
  part(name, function(keys, args)
    for _ = 1, 100 do run(keys, args) end
  end)
end

price('hget', function(keys) call('HGET', keys[1], 's') end)
price('hset', function(keys) call('HSET', keys[1], 's', HELD) end)
price('time', function() call('TIME') end)
price('zscore', function(keys, args) call('ZSCORE', keys[3], args[2]) end)
price('zadd_zrem', function(keys)
  call('ZADD', keys[3], DEADLINE, OTHER)
  call('ZREM', keys[3], OTHER)
end)
price('zrange', function(keys) call('ZRANGE', keys[3], '0', '0') end)
price('pexpireat', function(keys) call('PEXPIREAT', keys[1], '1960400010123') end)
price('publish', function(keys) call('PUBLISH', 'floor:c:0', TOKEN .. ' ' .. OTHER .. '\n' .. keys[1]) end)
price('pack', function()
  struct.pack('<BBBI4I4I4dddddd', 2, 0, 0, 0, 1, 1, 2 ^ 50, 2 ^ 50, 2 ^ 50, 2 ^ 40, 2 ^ 40, 60000)
end)
price('unpack', function() struct.unpack('<BBBI4I4I4dddddd', HELD) end)
-- 100 steps of the Lua machine.
price('step', function()
  for _ = 1, 100 do end
end)

-- A cycle.
part('acquire', function(keys)
  call('HGET', keys[1], 's')
  call('TIME')
  call('HSET', keys[1], 's', HELD)
end)
part('release', function(keys)
  call('HGET', keys[1], 's')
  call('HSET', keys[1], 's', FREE)
end)

-- A hand-over.
floor('queue', function(keys, args)
  call('HGET', keys[1], 's')
  call('TIME')
  call('ZADD', keys[2], TOKEN, args[2])
  call('ZADD', keys[3], DEADLINE, args[2])
  call('HSET', keys[1], 's', HELD)
  call('PEXPIREAT', keys[2], '1960400010123')
  return { 1, 1760400000123456, 3600000, 1760400000123456 }
end)
part('hand_over', function(keys, args)
  call('HGET', keys[1], 's')
  call('ZREM', keys[3], args[2])
  call('TIME')
  call('ZRANGE', keys[2], '0', '0')
  call('DEL', keys[2])
  call('HSET', keys[1], 's', HELD)
  call('PUBLISH', CHANNEL, TOKEN .. ' ' .. OTHER .. '\n' .. keys[1])
end)

-- A release that lets all waiting readers in.
part('crowd', function(keys, args)
  call('HGET', keys[1], 's')
  call('ZREM', keys[3], args[2])
  call('TIME')
  local readers = call('ZRANGE', keys[2], '0', '-1')
  call('DEL', keys[2])
  call('HSET', keys[1], 's', FREE)
  call('PUBLISH', CHANNEL, TOKEN .. ' ' .. table.concat(readers, ' ') .. '\n' .. keys[1])
end)

-- A renewal of one hold.
floor('renew', function(keys)
  call('HGET', keys[1], 's')
  call('TIME')
  call('HSET', keys[1], 's', HELD)
  return { 3600000, 1760400000123456, 1760400000123456 }
end)
