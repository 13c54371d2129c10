-- Prompts that were parked, since their dataset had come to its end, wait again: its budget may
-- have been raised. Done when a feeder starts.
-- → number of them
local reopened, cursor = 0, '0'
repeat
    local page = redis.call('HSCAN', PROMPTS, cursor, 'COUNT', 1000)
    cursor = page[1]
    for i = 1, #page[2], 2 do
        local id = page[2][i]
        if not redis.call('ZSCORE', WAITING, id) and not redis.call('ZSCORE', QUEUED, id)
            and not redis.call('ZSCORE', CLAIMS, id) then
            redis.call('ZADD', WAITING, NOW, id)
            reopened = reopened + 1
        end
    end
until cursor == '0'
return reopened
