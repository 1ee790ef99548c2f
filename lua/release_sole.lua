-- The head of release.lua, before lock.lua: the only hold of a lock that has no other request, for speed. Does what
-- count_down() does there; a test holds the two together.
local HASH, owner
do
  local request = ARGV[4]
  local first = string.find(request, ':', 1, true)
  local second = string.find(request, ':', first + 1, true)
  owner = string.sub(request, second and second + 1 or 2)
  HASH = redis.call('HMGET', KEYS[1], 'mode', 'rcount', 'writer', 'wcount', 'seq', 'up', 'policy', 'more', 'keep', 'cap',
    'sole', 'r:' .. owner, 't:' .. owner)
  local sole = HASH[11]
  if sole and #ARGV == 4 and ARGV[3] ~= '1' and string.find(sole, request .. ' ', 1, true) == 1 then
    if HASH[3] == owner and HASH[4] == '1' and not HASH[2] then
      redis.call('HDEL', KEYS[1], 'mode', 'writer', 'wcount', 't:' .. owner, 'sole')
      return { -1, 2 }
    elseif not HASH[3] and HASH[2] == '1' and HASH[12] == '1' then
      redis.call('HDEL', KEYS[1], 'mode', 'rcount', 'r:' .. owner, 't:' .. owner, 'sole')
      return { -1, 2 }
    end
  end
end
