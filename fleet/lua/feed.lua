-- Put new prompts on the ledger as queued, as long as their dataset has room; the caller sends a
-- task message for each accepted one.
-- ARGV: dataset, row after all of these ('' leaves the cursor), then prompt_id, payload, row after it, …
-- → 1 (accepted: send it) or 0 (known: done, failed, or under way) for each that there was room
--   for; what follows was not looked at, and the cursor stands before it
local dataset = ARGV[1]
local cursor, accepted, fresh = ARGV[2], {}, 0
local c = counters(dataset)
for i = 3, #ARGV, 3 do
    local id = ARGV[i]
    local known = redis.call('HEXISTS', PROMPTS, id) == 1 or redis.call('HEXISTS', DONE, id) == 1
        or redis.call('HEXISTS', FAILURES, id) == 1
    if not known and (c.cancelled == 1 or room(c, c.in_flight + fresh) <= 0) then
        end_if_full(dataset, c)
        if cursor ~= '' then cursor = i > 3 and ARGV[i - 1] or '0' end
        break
    end
    if not known then
        fresh = fresh + 1
        redis.call('HSET', PROMPTS, id, dataset .. '\n' .. ARGV[i + 1])
        redis.call('ZADD', QUEUED, NOW, id)
    end
    accepted[#accepted + 1] = known and 0 or 1
end
if cursor ~= '' then
    local field = dataset .. '|cursor'
    if tonumber(cursor) > tonumber(redis.call('HGET', DATASETS, field) or '0') then
        redis.call('HSET', DATASETS, field, cursor)
    end
end
return accepted
