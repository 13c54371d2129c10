-- The claims of a worker that is known to be dead expire now.
-- ARGV: beginning of the worker's name → number of its claims
local buried, cursor = 0, '0'
repeat
    local page = redis.call('HSCAN', CLAIM, cursor, 'COUNT', 1000)
    cursor = page[1]
    for i = 1, #page[2], 2 do
        local c = claim_of(page[2][i])
        if c and string.sub(c.worker, 1, #ARGV[1]) == ARGV[1] then
            redis.call('ZADD', CLAIMS, 'XX', NOW - 1, page[2][i])
            buried = buried + 1
        end
    end
until cursor == '0'
return buried
