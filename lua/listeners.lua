-- Before all others. In a cluster nobody announces that he listens to a lock's events: its node knows.
if ARGV[3] == '?' then
  local count = redis.pcall('PUBSUB', 'SHARDNUMSUB', KEYS[1] .. ':events')
  ARGV[3] = (count[2] or 0) > 0 and '1' or ''
end
