-- Put new prompts on the ledger as queued; the caller sends a task message for each accepted one.
-- ARGV: dataset, row after the last of these ('' leaves the cursor), then prompt_id, payload, …
-- → list of 1 (accepted: send it) or 0 (known: done, failed, or under way)
local dataset = ARGV[1]
local accepted = {}
for i = 3, #ARGV, 2 do
    local id = ARGV[i]
    local known = redis.call('HEXISTS', PROMPTS, id) == 1 or redis.call('HEXISTS', DONE, id) == 1
        or redis.call('HEXISTS', FAILURES, id) == 1
    if not known then
        redis.call('HSET', PROMPTS, id, dataset .. '\n' .. ARGV[i + 1])
        redis.call('ZADD', QUEUED, NOW, id)
    end
    accepted[#accepted + 1] = known and 0 or 1
end
if ARGV[2] ~= '' then
    local cursor = dataset .. '|cursor'
    if tonumber(ARGV[2]) > tonumber(redis.call('HGET', DATASETS, cursor) or '0') then
        redis.call('HSET', DATASETS, cursor, ARGV[2])
    end
end
return accepted
