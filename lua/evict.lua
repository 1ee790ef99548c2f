-- Evicts an owner: all its holds and all its waits. The operator's last resort; reads all requests.
-- ARGV: 2 owner
-- Returns { next ms, number of requests }
-- Wakes: the evicted requests (token 0) and the next waiters. Twice: 0 requests, nothing changes.
local refused = begin(KEYS, ARGV)
if refused then return refused end
if not ARGV[2] or ARGV[2] == '' then return { err = 'ERR not an owner' } end   -- many names have no weight
clock()
spread()   -- a server that takes no writes fails here: a message must not tell of an eviction that fails
local owner, evicted, names, cursor = ARGV[2], {}, {}, '0'
repeat
  local page = call('ZSCAN', LEASES, cursor, 'COUNT', '1000')
  cursor = page[1]
  for i = 1, #page[2], 2 do
    local of = owner_of(page[2][i])
    if of == owner or match(of, '^(.-):%*%d+$') == owner then evicted[page[2][i]] = true end   -- whatever its weight
  end
until cursor == '0'

for request in pairs(evicted) do names[#names + 1] = request end
-- Writers first, because an upgrade would end with its read hold.
table.sort(names, function(a, b) return a > b end)
for _, request in ipairs(names) do
  drop(request)
  tell(request, 0)
  note('evicted', request)
end
sweep(#names > 0)
save()
return { next_ms(), #names }
