-- The lock: its state, its expiry, and grant(), which alone grants besides the fast paths. It is a part of every script.
-- KEYS: 1 state (hash), 2 queue (sorted set: ticket), 3 leases (sorted set: deadline in ms)
-- ARGV[1]: PUBLISH or SPUBLISH   ARGV[2]: prefix of a client's channel   ARGV[3]: 1: somebody listens to events
-- load() reads the state once, set() changes it, save() writes it once. PROTOCOL.md explains the fields.
local LOCK, QUEUE, LEASES = KEYS[1], KEYS[2], KEYS[3]
local BATCH = 1024         -- grants a call, so that a script takes a millisecond or two
local EXPIRY_BATCH = 200   -- expired requests a call
local RETENTION = 30000    -- ms for which the keys outlive the last deadline, at least

local state, changed = {}, {}   -- false: known to be absent
local messages = {}             -- client -> its grants
local events = ARGV[3] == '1' and {}
local fresh_leases = false      -- LEASES does not exist: if this script creates it, it needs a TTL
local now_us
local upgrading                 -- the request that waits to upgrade, read once; false: none

-- `..` and tostring() keep 14 digits of a number; tickets and tokens have 16.
local function int(number) return string.format('%d', number) end

local function clock()
  if not now_us then
    local time = redis.call('TIME')
    now_us = time[1] * 1000000 + time[2]
  end
  return now_us
end

local function now_ms() return math.floor(clock() / 1000) end

-- Reads the hash once, with further fields that the script needs.
local function load(...)
  local v = redis.call('HMGET', LOCK, 'mode', 'rcount', 'writer', 'wcount', 'seq', 'policy', 'more', 'keep', 'cap', 'sole',
    ...)
  state = {
    mode = v[1], rcount = v[2], writer = v[3], wcount = v[4], seq = v[5], policy = v[6], more = v[7], keep = v[8],
    cap = v[9], sole = v[10],
  }
  for i = 1, select('#', ...) do state[select(i, ...)] = v[10 + i] end
end

-- Reads further fields in one command; the known ones stay.
local function fetch(fields)
  if not fields[1] then return end
  for i, value in ipairs(redis.call('HMGET', LOCK, unpack(fields))) do
    if state[fields[i]] == nil then state[fields[i]] = value end
  end
end

local function get(field)
  if state[field] == nil then state[field] = redis.call('HGET', LOCK, field) end
  return state[field]
end

local function count(field) return tonumber(get(field) or 0) end

local function set(field, value)
  state[field] = value
  changed[field] = true
end

local function add(field, n)
  local value = count(field) + n
  set(field, value > 0 and value or false)
  return value
end

local function next_seq()
  local seq = int(math.max(count('seq') + 1, clock()))
  set('seq', seq)
  return seq
end

-- A lock with one request keeps its lease in the hash: `sole` is request, space, deadline.
local function is_sole(request)
  return state.sole and string.find(state.sole, request .. ' ', 1, true) == 1
end

-- Moves the lease of a sole request to LEASES, before another request comes. Every script that reads the queue calls this
-- first, because a key of another type must fail before the script writes anything. Returns the length of the queue.
local function spread()
  local waiting = redis.call('ZCARD', QUEUE)
  if not state.sole then return waiting end
  local request, deadline = string.match(state.sole, '^(.+) (%d+)$')
  redis.call('ZADD', LEASES, deadline, request)
  fresh_leases = true
  set('sole', false)
  return waiting
end

-- Notes an event, if anybody listens: see save().
local function note(what, request, token)
  if events then events[#events + 1] = what .. ' ' .. request .. ' ' .. (token or 0) end
end

local function writes(request) return string.byte(request) == 119 end   -- 'w'

-- The owner that the user named, or nil.
local function named_owner(request) return string.match(request, '^[^:]*:[^:]*:(.*)$') end

local function owner_of(request) return named_owner(request) or string.sub(request, 2) end

-- Whether the request may enter beside the holders. It does not look at the queue.
local function fits(request, owner)
  if state.writer then return state.writer == owner end
  local readers = count('rcount')
  return readers == 0 or not writes(request) or readers == count('r:' .. owner)
end

-- The token that a reply tells a holder: a writer the owner's token, a reader the token with which the owner entered, which
-- an upgrade does not change. A greater token than the hold's own means that it was interrupted. False: the owner does not hold.
local function told(request, owner)
  if writes(request) then return state.writer == owner and get('t:' .. owner) end
  if state.writer and state.writer ~= owner then return false end   -- the count was lost, and a writer entered
  local token = count('r:' .. owner) > 0 and get('t:' .. owner)
  return token and (get('f:' .. owner) or token)
end

-- Whether the fields agree on who holds. If not, a field was lost.
local function sound()
  local mode = count('wcount') > 0 and 'write' or count('rcount') > 0 and 'read' or false
  return mode == (state.mode or false) and (mode == 'write') == (state.writer and true or false)
end

-- Whether as many requests hold as are counted. If not, one of the keys was lost.
local function complete()
  return redis.call('ZCARD', LEASES) - redis.call('ZCARD', QUEUE) == count('rcount') + count('wcount')
end

-- Grants; only this and the fast paths do. The caller has checked that the request fits, and stores its deadline.
local function grant(request, owner)
  local token = 't:' .. owner
  if writes(request) then
    if state.writer ~= owner then
      local former = count('rcount') > 0 and get(token)
      if former and not get('f:' .. owner) then set('f:' .. owner, former) end
      set('mode', 'write')
      set('writer', owner)
      set(token, next_seq())   -- also for a reader: its old token does not order its writes
    end
    add('wcount', 1)
  else
    if not state.mode then set('mode', 'read') end
    add('rcount', 1)
    add('r:' .. owner, 1)
    if not get(token) then set(token, next_seq()) end
  end
  note('granted', request, state[token])
  return state[token]
end

-- A request leaves the queue: it enters or it ends.
local function leave_queue(request)
  local owner = named_owner(request)
  if owner then set('q:' .. owner, false) end
end

local function tell(request, token)
  local client = string.match(request, '^.(%x+):')
  local list = messages[client] or {}
  list[#list + 1] = request .. ' ' .. token
  messages[client] = list
end

-- An upgrade ends with its owner's last read hold. Only upgrades have scores below zero.
local function end_upgrade(owner)
  if upgrading == nil then
    local head = redis.call('ZRANGE', QUEUE, 0, 0, 'WITHSCORES')
    upgrading = head[1] and tonumber(head[2]) < 0 and head[1]
  end
  if upgrading and owner_of(upgrading) == owner and redis.call('ZREM', QUEUE, upgrading) == 1 then
    redis.call('ZREM', LEASES, upgrading)
    leave_queue(upgrading)
    tell(upgrading, 1)   -- not a token: the request may ask again, as a plain writer
    note('left', upgrading)
  end
end

-- Ends a holder. Returns the token that the reply tells it, or 0 if the hash does not know the hold.
local function count_down(request, owner)
  local token = tonumber(told(request, owner) or 0)
  if writes(request) then
    if state.writer ~= owner then return 0 end
    if add('wcount', -1) > 0 then return token end
    set('writer', false)
    set('mode', count('rcount') > 0 and 'read' or false)
  else
    if count('r:' .. owner) == 0 then return 0 end
    add('r:' .. owner, -1)
    if add('rcount', -1) <= 0 and not state.writer then set('mode', false) end
  end
  if state.writer ~= owner and not get('r:' .. owner) then
    set('t:' .. owner, false)
    set('f:' .. owner, false)
    if not state.sole then end_upgrade(owner) end
  end
  return token
end

-- Ends a request that was just removed from LEASES. Returns 1 if it waited, else as count_down. The owner's holds do not show
-- which: another request of the same owner may hold, and a late copy of an acquire may have queued this one.
local function drop(request)
  local owner = owner_of(request)
  if redis.call('ZREM', QUEUE, request) == 0 then
    if named_owner(request) and get('q:' .. owner) == request then leave_queue(request) end   -- the queue was lost
    return count_down(request, owner)
  end
  leave_queue(request)
  return 1
end

-- Reads the holds of the owners of the readers at the head in one command, because thousands may enter together.
local function fetch_readers(heads)
  local fields = {}
  for _, request in ipairs(heads) do
    if writes(request) then break end
    local owner = owner_of(request)
    fields[#fields + 1] = 'r:' .. owner
    fields[#fields + 1] = 't:' .. owner
  end
  fetch(fields)
end

-- Restarts the lock, because a key or a field was lost and the holders are unknown. Everybody asks again.
local function start_over()
  redis.call('DEL', LOCK, QUEUE, LEASES)
  note('reset', '-')   -- of no request: streams of events skip it
  local seq, keep, cap, policy = state.seq, state.keep, state.cap, state.policy
  state, changed, messages, upgrading = {}, {}, {}, nil
  set('seq', seq)
  set('keep', keep)
  set('cap', cap)
  set('policy', policy)
end

-- Grants to the head of the queue for as long as it fits.
local function admit()
  local left, blocked, heads = BATCH, state.writer, nil
  local size = 1                                   -- mostly one writer enters, or none
  while left > 0 and not blocked do
    heads = redis.call('ZRANGE', QUEUE, 0, size - 1)
    if size == 1 and heads[1] and not writes(heads[1]) then
      size = left
      heads = redis.call('ZRANGE', QUEUE, 0, size - 1)
    end
    if not heads[1] then break end
    if size > 1 then fetch_readers(heads) end
    local deadlines = redis.call('ZMSCORE', LEASES, unpack(heads))
    local taken, dead = {}, {}
    for i, request in ipairs(heads) do
      if tonumber(deadlines[i] or 0) <= now_ms() then
        leave_queue(request)
        note('expired', request)
        dead[#dead + 1] = request
      else
        local owner = owner_of(request)
        if state.writer or not fits(request, owner) then
          blocked = true
          break
        end
        leave_queue(request)
        tell(request, grant(request, owner))
      end
      taken[#taken + 1] = request
    end
    if taken[1] then redis.call('ZREM', QUEUE, unpack(taken)) end
    if dead[1] then
      redis.call('ZREM', LEASES, unpack(dead))
      fresh_leases = true
    end
    blocked = blocked or state.writer
    if #heads < size then break end
    left = left - #taken
    size = math.min(left, size * 16)
  end
  if left <= 0 and not blocked then
    set('more', 1)
  elseif state.more then
    set('more', false)
  end
end

-- Expires requests past their deadline, then admits the queue if a waiter may fit now.
-- Returns ms to the nearest deadline, 0 if there is more to do, -1 if there is no deadline.
local function sweep(freed)
  -- The hash was lost, and with it the holders; or a field was lost.
  local requests = state.seq and 0 or redis.call('ZCARD', QUEUE) + (state.mode and 0 or redis.call('ZCARD', LEASES))
  if not sound() or requests > 0 then
    start_over()
    return -1
  end
  local budget = EXPIRY_BATCH
  local first
  while true do
    first = redis.call('ZRANGE', LEASES, 0, 0, 'WITHSCORES')
    if not first[1] or tonumber(first[2]) > now_ms() then break end
    if budget == 0 then
      if freed or state.more then admit() end
      return 0
    end
    budget = budget - 1
    redis.call('ZREM', LEASES, first[1])
    drop(first[1])
    note('expired', first[1])
    freed = true
  end
  if freed or state.more then admit() end
  if state.more then return 0 end
  if first[1] then return math.max(tonumber(first[2]) - now_ms(), 1) end
  fresh_leases = true
  return -1
end

-- The deadline of a lease that starts now. The keys outlive it by RETENTION.
local function deadline(ms)
  local at = now_ms() + ms
  if ms > count('cap') then set('cap', int(ms)) end
  if at + RETENTION > count('keep') then set('keep', int(at + 2 * RETENTION)) end
  return int(at)
end

local function lease(request, ms) redis.call('ZADD', LEASES, deadline(ms), request) end

-- Writes the changes, then publishes. Messages are hints, so a failing one must not undo a grant.
local function save()
  local puts, cuts, p, c = {}, {}, 0, 0
  for field in pairs(changed) do
    local value = state[field]
    if value then
      puts[p + 1], puts[p + 2], p = field, value, p + 2
    else
      cuts[c + 1], c = field, c + 1
    end
  end
  if p > 0 then redis.call('HSET', LOCK, unpack(puts)) end
  if c > 0 then redis.call('HDEL', LOCK, unpack(cuts)) end
  if changed.keep and state.keep then
    for _, key in ipairs(KEYS) do redis.call('PEXPIREAT', key, state.keep) end
  elseif fresh_leases and state.keep then
    redis.call('PEXPIREAT', LEASES, state.keep)
  end
  for client, list in pairs(messages) do
    redis.pcall(ARGV[1], ARGV[2] .. client, table.concat(list, ' ') .. '\n' .. LOCK)
  end
  if events and events[1] then
    redis.pcall(ARGV[1], LOCK .. ':events', int(clock()) .. '\n' .. table.concat(events, '\n'))
  end
  changed, messages, events = {}, {}, events and {}
end
