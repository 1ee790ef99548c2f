-- Ends requests, holding or waiting: a release, a cancel, or a grant at the moment of a cancel.
-- ARGV: 2.. requests
-- Returns for each request: a token, as count_down: it held; 1 it waited; 0 unknown: it was over, expired or lost. Of one
--       request that number alone; otherwise, and when there is more to do, { next ms, number... }
-- Wakes: the next waiters. Twice: 0 for each request, nothing changes.
local refused = begin(KEYS, ARGV)
if refused then return refused end
local waited, reply, ended = waiting > 0, #ARGV > 2 and {}, 0
for i = 2, #ARGV do
  ended = drop(ARGV[i])
  if events and ended > 0 then note(ended == 1 and 'left' or 'released', ARGV[i]) end
  if reply then reply[i] = ended end
end
if waited then
  clock()
  sweep(true)
end
local shorter = save()
local next = waited and next_ms() or -1
if not reply and next ~= 0 and not shorter then return ended end
reply = reply or { next, ended }
reply[1] = next
return reply
