-- How many unfinished prompts each dataset has on the ledger.
-- → dataset, count, …
local counts, cursor = {}, '0'
repeat
    local page = redis.call('HSCAN', PROMPTS, cursor, 'COUNT', 1000)
    cursor = page[1]
    for i = 2, #page[2], 2 do
        local dataset = string.sub(page[2][i], 1, string.find(page[2][i], '\n', 1, true) - 1)
        counts[dataset] = (counts[dataset] or 0) + 1
    end
until cursor == '0'
local out = {}
for dataset, count in pairs(counts) do out[#out + 1] = dataset out[#out + 1] = count end
return out
