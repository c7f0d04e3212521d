"""The Lua script that limits the total size of the values in Redis."""

# Keys: a sorted set of names by the time when they expire, and a hash of their sizes, in which the field
# with an empty name is the total. Arguments: a name, its size (0: it is deleted), its lifetime in ms, and the
# largest total. Redis may evict values by itself; they count until they would have expired.
ACCOUNT = """
local expiries, sizes, name = KEYS[1], KEYS[2], ARGV[1]
local size, ttl, limit = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function forget(each)
    local known = tonumber(redis.call('HGET', sizes, each) or 0)
    redis.call('HINCRBY', sizes, '', -known)
    redis.call('HDEL', sizes, each)
    redis.call('ZREM', expiries, each)
end

forget(name)
local expired = redis.call('ZRANGEBYSCORE', expiries, '-inf', now, 'LIMIT', 0, 1000)
for _, each in ipairs(expired) do forget(each) end
while tonumber(redis.call('HGET', sizes, '') or 0) + size > limit do
    local first = redis.call('ZRANGE', expiries, 0, 0)[1]
    if not first then break end
    redis.call('DEL', first, first .. ':version')
    forget(first)
end
if redis.call('ZCARD', expiries) == 0 then redis.call('DEL', sizes) end
if size > 0 then
    redis.call('ZADD', expiries, now + ttl, name)
    redis.call('HSET', sizes, name, size)
    redis.call('HINCRBY', sizes, '', size)
    for _, key in ipairs(KEYS) do
        if redis.call('PTTL', key) < ttl then redis.call('PEXPIRE', key, ttl) end
    end
end
return 0
"""
