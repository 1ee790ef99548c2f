-- The first file of every script. In a cluster no listener announces itself: the lock's node knows its subscribers.
if ARGV[3] == '?' then
  local count = redis.pcall('PUBSUB', 'SHARDNUMSUB', KEYS[1] .. ':events')
  ARGV[3] = (count[2] or 0) > 0 and '1' or ''
end
