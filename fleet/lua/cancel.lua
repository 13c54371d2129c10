-- Stop a dataset: nothing more is sent or claimed; what is in flight is kept when it comes.
-- ARGV: dataset → number of prompts taken off the ledger
local dataset, dropped = ARGV[1], 0
redis.call('HSET', DATASETS, dataset .. '|cancelled', 1)
local cursor = '0'
repeat
    local page = redis.call('HSCAN', PROMPTS, cursor, 'COUNT', 1000)
    cursor = page[1]
    for i = 1, #page[2], 2 do
        local id, record = page[2][i], page[2][i + 1]
        if string.sub(record, 1, #dataset + 1) == dataset .. '\n' and not redis.call('ZSCORE', CLAIMS, id) then
            forget(id)
            dropped = dropped + 1
        end
    end
until cursor == '0'
return dropped
