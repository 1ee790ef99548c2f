-- The lock: its state, its expiry, and admit(). It comes before every script, and once in the library of functions.
-- KEYS: 1 state (hash), 2 queue (sorted set: score), 3 leases (sorted set: deadline in ms)
-- ARGV[1]: options, letters: s this is a cluster; a by ASKING; e somebody listens to events; t try; u upgrade; q vote
-- of a quorum; w, r policy; n and a limit: policy, m and a number: the longest queue
-- begin() reads the state once, save() writes it once. PROTOCOL.md explains the fields.
local BATCH = 1024         -- grants a call, so that a script takes milliseconds
local EXPIRY_BATCH = 200   -- expired requests a call
local GRACE = 1000         -- ms of lease for a grant that nobody heard
local RETENTION = 30000    -- ms for which the keys outlive the last deadline, at least
local BAND = 4503599627370496   -- 2^52: more than any ticket until the year 2112
local LAYOUT, FORMAT, PACKED = 2, '<BBBI4I4I4dddddd', 63   -- its length
local BOUNDED, MOST = 110, 1000000000   -- the policy n; the greatest limit, and the greatest weight
local PLUS = 43
-- A library sees no globals while the server loads it.
local call, format, find, match, sub, byte, min, pack, unpack_state

-- Of this call. A library keeps its variables from call to call, so begin() sets each of them.
local LOCK, QUEUE, LEASES, options, arguments, sharded
local policy, sole, more, up, reads, writes, waiting, seq, token, first, near, keep, cap, holder
local limit, used          -- of a bounded lock: how much may read at a time, and how much does
local us, now              -- the server's time, once clock() has asked for it
local messages, events     -- client -> its words; lines. nil: none yet; events false: nobody listens
local born                 -- the hash is new
local used_before, waited_before   -- when the call came: whether anybody was there, and how many waited
local fresh_keep           -- the keys need a later expiry

-- `..` and tostring() keep 14 digits of a number; tickets and tokens have 16.
local function int(number) return format('%d', number) end

-- A script calls this before anything that compares or draws a time: draw(), deadline(), sweep(), next_ms().
local function clock()
  if not us then
    local time = call('TIME')
    us = time[1] * 1000000 + time[2]
    now = (us - us % 1000) / 1000
  end
  return us
end

-- Notes an event, if anybody listens: see save().
local function note(what, request, number)
  if events then events[#events + 1] = what .. ' ' .. request .. ' ' .. (number or '0') end
end

-- A call that is refused for its lease must be refused before it writes anything. A year is less than 10^11 ms.
local function is_lease(ms) return ms and ms > 0 and ms < 100000000000 end

-- A number that a call may leave out: nil if it does, -1 for what is no number.
local function optional(text) return text and text ~= '' and (tonumber(text) or -1) or nil end

-- Smaller than BAND: tokens must still grow after it.
local function is_ticket(number) return number > 0 and number < BAND and number % 1 == 0 end

-- Before: by the names' bytes, as in a sorted set. `<` alone compares by the server's locale.
local function precedes(request, other)
  local function bytes(name) return (string.gsub(name, '.', function(char) return format('%02x', byte(char)) end)) end
  return bytes(request) < bytes(other)
end

local function is_write(request) return byte(request) == 119 end   -- 'w'

-- The owner that the request names, or nil. Otherwise its owner is its client and its number, and its weight.
local function named_owner(request)
  local colon = find(request, ':', 1, true)
  local second = find(request, ':', (colon or 0) + 1, true)
  if second and byte(request, second + 1) ~= 42 then return sub(request, second + 1) end   -- '*', a weight
end

local function owner_of(request) return named_owner(request) or sub(request, 2) end

-- What all read holds of an owner count together in a bounded lock.
local function weight(owner) return min(tonumber(match(owner, ':%*(%d+)$') or 1), MOST) end

-- Whether that owner writes. To look for its name first is cheaper than to take the holder's apart.
local function writes_as(owner) return writes > 0 and find(holder, owner, 1, true) and owner_of(holder) == owner end

local function free() return reads + writes + waiting == 0 end

-- Restarts the lock, because a key was lost and the holders are unknown. Everybody asks again.
local function start_over()
  call('DEL', LOCK, QUEUE, LEASES)
  note('reset', '-')   -- of no request: streams of events skip it
  sole, more, up, reads, writes, waiting, near, holder, messages, used = 0, 0, 0, 0, 0, 0, 0, '', nil, 0
  born, fresh_keep = true, true
end

-- Reads the state. Returns an error if another layout has it.
local function begin(keys, args, only_reads)
  if not pack then
    call = redis.call
    format, find, match, sub, byte = string.format, string.find, string.match, string.sub, string.byte
    min, pack, unpack_state = math.min, struct.pack, struct.unpack
  end
  LOCK, QUEUE, LEASES, options, arguments = keys[1], keys[2], keys[3], args[1], args
  us, now, messages, events, born = nil, nil, nil, false, false
  fresh_keep, sharded, limit, used, used_before, waited_before = false, false, 0, 0, false, 0
  if options ~= '' then
    sharded = find(options, 's', 1, true)
    -- In a cluster no listener announces itself: the lock's node knows its subscribers.
    if sharded and call('PUBSUB', 'SHARDNUMSUB', LOCK .. ':events')[2] > 0 or find(options, 'e', 1, true) then events = {} end
  end
  local s, layout, flags, at = call('HGET', LOCK, 's')
  if s and #s >= PACKED then
    layout, policy, flags, reads, writes, waiting, seq, token, first, near, keep, cap, at = unpack_state(FORMAT, s)
  end
  if layout == LAYOUT and (policy ~= BOUNDED or #s >= PACKED + 8) then
    sole, more, up = flags, 0, 0
    if flags > 1 then sole, more, up = flags % 2, flags % 4 >= 2 and 1 or 0, flags >= 4 and 1 or 0 end
    if policy == BOUNDED then limit, used, at = unpack_state('<I4I4', s, at) end
    holder, used_before, waited_before = sub(s, at), reads + writes + waiting > 0, waiting
    return
  end
  local other = s and byte(s) ~= LAYOUT and byte(s)   -- of ours it is too short: it is damaged
  policy, sole, more, up, reads, writes, waiting = 0, 0, 0, 0, 0, 0, 0
  seq, token, first, near, keep, cap, holder, born = 0, 0, 0, 0, 0, 0, '', true
  if not other and call('EXISTS', LOCK, QUEUE, LEASES) > 0 then
    local fields = call('HMGET', LOCK, 'policy', 'seq')
    other = fields[2] and fields[1] ~= int(LAYOUT) and (match(fields[1] or '', '^%d+') or 1)
    if not other and not only_reads then
      call('ZCARD', QUEUE)   -- a key of another type is not ours to remove
      call('ZCARD', LEASES)
      start_over()
    end
  end
  if other then return { err = 'LAYOUT another version of fairlock uses the lock: layout ' .. other } end
end

-- A new ticket or token.
local function draw()
  seq = seq < us and us or seq + 1
  return seq
end

-- The deadline of a lease that starts now. The keys outlive it by RETENTION.
local function deadline(ms)
  local at = now + ms
  if ms > cap then cap = ms end
  if at + RETENTION > keep then keep, fresh_keep = at + 2 * RETENTION, true end
  if near == 0 or at < near then near = at end
  return at
end

-- The deadline by the lease that a call asks for. With a plus sign it is no earlier than the one that the request has.
local function extended(lease, present)
  local ms = tonumber(lease)
  if byte(lease) ~= PLUS or now + ms >= tonumber(present) then return deadline(ms) end
  if ms > cap then cap = ms end
  return tonumber(present)
end

-- A lock whose only request holds keeps its lease in `near`. Before another request comes, it goes to LEASES. A key of
-- another type must fail before the script writes anything.
local function spread()
  if sole == 0 then return end
  call('ZCARD', QUEUE)
  call('ZADD', LEASES, int(near), holder)
  call('PEXPIREAT', LEASES, int(keep))
  sole = 0
  if writes == 0 then holder = '' end
end

-- A sorted set whose last member this call has removed is no key any more. While a slot migrates, a script that touches it
-- fails in its middle. After a restart, or in a quarantine, it may.
local function is_queue_gone() return waiting == 0 and waited_before > 0 end

-- Whether as many requests hold and wait as are counted. If not, a key was lost.
local function complete()
  if sole == 1 or used_before and free() then return true end
  return (is_queue_gone() or call('ZCARD', QUEUE) == waiting) and call('ZCARD', LEASES) == reads + writes + waiting
end

-- Read holds of an owner. The request from which an owner has its name is in the field only of a bounded lock.
local function reads_of(owner)
  local held = tonumber(call('HGET', LOCK, 'r:' .. owner) or 0)
  if policy ~= BOUNDED and reads > held and find(owner, ':', 1, true) then
    local request = 'r' .. owner
    if sole == 1 and holder == request
      or sole == 0 and call('ZSCORE', LEASES, request) and (is_queue_gone() or not call('ZSCORE', QUEUE, request)) then
      held = held + 1
    end
  end
  return held
end

-- Whether an owner may read beside others in a bounded lock.
local function room(owner) return used + weight(owner) <= limit or reads_of(owner) > 0 end

-- Tells a request's client a token; 0: evicted; 1: the read hold of this upgrade ended.
local function tell(request, number, client)
  client = client or match(request, '^.(%x+):')
  local words = messages and messages[client]
  if not words then
    messages = messages or {}
    messages[client] = { last = number, int(number), request }
    return
  end
  if words.last ~= number then
    words.last = number
    words[#words + 1] = int(number)
  end
  words[#words + 1] = request
end

-- A request that fits enters; only this grants. A phase is a writer's hold, or the time in which readers are inside without
-- a break; it begins with a token. A reader beside readers shares it, unless the reader waited: then its token must be
-- greater than what it was told while it waited, so admit() draws one.
local function enter(request, named, write)
  if write then
    if writes == 0 then
      token, holder = draw(), request
      if reads == 0 then first = token end   -- a reader that upgrades was not interrupted
    end
    writes = writes + 1
  else
    if reads + writes == 0 then
      token = draw()
      first = token
    end
    reads = reads + 1
    local owner = named or policy == BOUNDED and sub(request, 2)
    if owner and call('HINCRBY', LOCK, 'r:' .. owner, '1') == 1 and policy == BOUNDED then used = used + weight(owner) end
  end
  if events then note('granted', request, int(token)) end
end

-- A request leaves the queue: it entered or it ended.
local function left(named)
  waiting = waiting - 1
  if named then call('HDEL', LOCK, 'q:' .. named) end
end

-- The request that waits to upgrade. `up` says that there may be one; only upgrades have scores below zero.
local function upgrading()
  local head = up == 1 and waiting > 0 and call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES') or {}
  if head[1] and tonumber(head[2]) < 0 then return head[1] end
  up = 0
end

-- An upgrade ends with its owner's last read hold.
local function end_upgrade(owner)
  local request = upgrading()
  if request and owner_of(request) == owner and not writes_as(owner) and reads_of(owner) == 0 then
    up = 0
    call('ZREM', QUEUE, request)
    call('ZREM', LEASES, request)
    left(named_owner(request))
    tell(request, 1)   -- not a token: the request may ask again, as a plain writer
    note('left', request)
  end
end

-- Ends a holder that has no lease any more. Returns the number that a release tells: a writer the last token, a reader the
-- token with which the phase began. A greater one than the hold's own means that it was interrupted.
local function count_down(request)
  local told = token
  if holder == request and writes > 0 or is_write(request) then
    if holder ~= request and not writes_as(owner_of(request)) then return 0 end
    writes = writes - 1
  else
    if reads == 0 then return 0 end
    reads, told = reads - 1, first
    local owner = named_owner(request) or policy == BOUNDED and sub(request, 2)   -- whose read holds have a field
    if owner and call('HINCRBY', LOCK, 'r:' .. owner, '-1') <= 0 then
      call('HDEL', LOCK, 'r:' .. owner)
      -- If the field was lost: it counts wrong until the readers have left.
      if policy == BOUNDED then used = reads > 0 and used - min(used, weight(owner)) or 0 end
    end
  end
  if writes == 0 then holder = '' end
  if up == 1 then end_upgrade(owner_of(request)) end
  return told
end

-- Ends a request if it is there. Returns 1 if it waited, 0 if it is unknown, else as count_down.
local function drop(request)
  local told = 1
  if sole == 1 then
    if holder ~= request then return 0 end
    sole = 0
    told = count_down(request)
  elseif used_before and free() or call('ZREM', LEASES, request) == 0 then
    return 0
  -- Its owner's holds do not show whether it waits: a late copy of an acquire may have queued it while its owner holds by
  -- another request. What became the holder has left the queue, and stays outside of it while its owner writes.
  elseif holder ~= request and waiting > 0 and call('ZREM', QUEUE, request) == 1 then
    left(named_owner(request))
  else
    told = count_down(request)
  end
  if reads + writes + waiting == 0 then near, more = 0, 0 end
  return told
end

-- heads[at] is a reader of that client that names no owner, and it has entered. All readers behind it that name no owner
-- enter with it, until another request stands there. Most of a crowd are of one client, and to look for its name costs less
-- than to take each request apart. Returns the place of the last one.
local function enter_crowd(heads, at, client)
  local last, same, number, words = at, 'r' .. client .. ':', #client + 3, messages[client]
  for i = at + 1, #heads do
    local request = heads[i]
    if find(request, same, 1, true) == 1 then
      if find(request, ':', number, true) then break end
      words[#words + 1] = request
    else
      local other, past = match(request, '^r(%x+):%d+()')
      if not other or past <= #request then break end
      tell(request, token, other)
    end
    last = i
  end
  reads, waiting = reads + last - at, waiting - last + at
  return last
end

-- Grants to the head of the queue for as long as it fits. No lease has ended: sweep() came before.
local function admit()
  more = 0
  if writes > 0 or waiting == 0 then return end
  local from, to, entered, full, again = '0', '0', 0, false, false   -- mostly one writer enters, or none
  repeat
    local heads = call('ZRANGE', QUEUE, from, to)
    if not heads[1] then return start_over() end   -- the queue was lost
    local i = 0
    while heads[i + 1] and not full do
      i = i + 1
      local request = heads[i]
      local mode, client, at = match(request, '^(.)(%x+):%d+()')
      local write = mode == 'w'
      local named = at <= #request and named_owner(request)
      full = write and (entered > 0 or reads > 0 and not (named and reads == reads_of(named)))
        or policy == BOUNDED and reads > 0 and not room(named or sub(request, 2))
      if full then
        again = entered > 0 and named   -- its owner may be the reader that entered just now
      else
        if entered == 0 and reads > 0 and not write then token = draw() end
        entered = entered + 1
        left(named)
        enter(request, named, write)
        tell(request, token, client)
        full = write
        if not (write or named or events or policy == BOUNDED) then
          local last = enter_crowd(heads, i, client)
          entered, i = entered + last - i, last
        end
      end
    end
    full = full or waiting == 0
    if not full then from, to = int(entered), int(min(entered * 16, BATCH) - 1) end
  until full or entered == BATCH
  if waiting == 0 then
    call('DEL', QUEUE)
  elseif entered > 0 then
    call('ZREMRANGEBYRANK', QUEUE, '0', int(entered - 1))
  end
  if not full then more = 1 end
  if again then admit() end
end

-- If a lease may have ended: expires requests past their deadline. Then admits the queue if a waiter may fit now.
local function sweep(freed)
  if near ~= 0 and near <= now then
    local dead = sole == 1 and { holder } or
      call('ZRANGEBYSCORE', LEASES, '-inf', int(now), 'LIMIT', '0', int(EXPIRY_BATCH))
    for _, request in ipairs(dead) do
      if drop(request) > 0 then note('expired', request) end
      freed = true
    end
    if not free() then
      local nearest = call('ZRANGE', LEASES, '0', '0', 'WITHSCORES')[2]
      near = tonumber(nearest or 0)
      if not complete() then start_over() end
    end
  end
  if freed or more == 1 then
    if near ~= 0 and near <= now then more = 1 else admit() end
  end
end

-- ms to the nearest deadline or less, 0 if there is more to do, -1 if there is no deadline.
local function next_ms()
  if more == 1 then return 0 end
  if near == 0 then return -1 end
  return near > now and near - now or 0
end

local function channel_of(client) return (sharded and LOCK .. ':c:' or match(LOCK, '^[^{]*') .. 'c:') .. client end

-- Nobody believes a grant that nobody heard. So its lease ends after GRACE, and so do those of the waiters at the head
-- whose clients do not listen. The requests that this call names keep theirs: their client hears the reply. Returns whether
-- a lease became shorter.
local function cut(unheard)
  -- The subscribers of a slot stay with its former node until the slot has moved.
  if find(options, 'a', 1, true) then return end
  -- The former master of a promoted server may pass messages on to clients that this server does not count.
  if not find(tostring(redis.pcall('INFO', 'replication')), 'master_replid2:0+\r') then return end
  local at, named, deaf, cuts = now + GRACE, {}, {}, 0
  for _, word in ipairs(arguments) do named[word] = true end
  local function shorten(request) cuts = cuts + call('ZADD', LEASES, 'XX', 'LT', 'CH', int(at), request) end
  for client, words in pairs(unheard) do
    local number
    for _, word in ipairs(words) do
      if tonumber(word) then
        number = tonumber(word)
      elseif number > 1 then
        deaf[client] = true
        if not named[word] then shorten(word) end
      end
    end
  end
  for _, request in ipairs(next(deaf) and waiting > 0 and call('ZRANGE', QUEUE, '0', int(EXPIRY_BATCH - 1)) or {}) do
    local client = match(request, '^.(%x+)')
    if not named[request] then
      if deaf[client] == nil then
        -- Who may not ask believes that the client listens.
        deaf[client] = redis.pcall('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', channel_of(client))[2] == 0
      end
      if not deaf[client] then break end
      shorten(request)
    end
  end
  if cuts > 0 and at < near then near = at end
  return cuts > 0
end

-- Publishes, then writes the state. Messages are hints, so a failing one must not undo a grant. Returns whether a lease was
-- cut: then somebody has to look again, after the next ms.
local function save()
  local unheard, shorter
  if messages then
    for client, words in pairs(messages) do
      local text = table.concat(words, ' ') .. '\n' .. LOCK
      if redis.pcall(sharded and 'SPUBLISH' or 'PUBLISH', channel_of(client), text) == 0 then
        unheard = unheard or {}
        unheard[client] = words
      end
    end
    shorter = unheard and cut(unheard)
  end
  if seq > 0 then   -- a lock that nobody ever used stays without keys
    local s = pack(FORMAT, LAYOUT, policy, sole + 2 * more + 4 * up, reads, writes, waiting, seq, token, first, near, keep, cap)
      .. (policy == BOUNDED and pack('<I4I4', limit, used) or '') .. holder
    if born then
      call('HSET', LOCK, 's', s, 'policy', int(LAYOUT), 'seq', '0')   -- by these, layout 1 sees another layout
    else
      call('HSET', LOCK, 's', s)
    end
  end
  if fresh_keep then
    local at = int(keep)
    call('PEXPIREAT', LOCK, at)
    if sole == 0 and waiting > 0 then call('PEXPIREAT', QUEUE, at) end
    if sole == 0 and not free() then call('PEXPIREAT', LEASES, at) end
  end
  if events and events[1] then
    redis.pcall(sharded and 'SPUBLISH' or 'PUBLISH', LOCK .. ':events', int(clock()) .. '\n' .. table.concat(events, '\n'))
  end
  return shorter
end

-- The reply of acquire: for a token and for busy, that number alone.
local function answer(status, value, ahead)
  local shorter = save()
  local next = next_ms()
  if (status == 2 or status == 0) and next ~= 0 and not shorter then return value end
  return { status, value, next, seq, ahead }
end

-- If the data were lost and the clock is behind, new tickets and tokens still come after an old ticket.
local function pass(ticket)
  if ticket > seq then seq = ticket end
end
