-- Prompts whose task message is due (again): claims that expired, waiting prompts that are due,
-- and, when the queue is empty, queued prompts whose message is gone.
-- ARGV: most waiting prompts to return, age ms from which a queued prompt counts as lost (0: none
--       is lost), most lost prompts to return, the only prompt_ids to look at (none: all)
-- → prompt_ids, now queued; the caller sends a task message for each
local most, lost, most_lost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
for _, id in ipairs(redis.call('ZRANGEBYSCORE', CLAIMS, '-inf', NOW, 'LIMIT', 0, 1000)) do
    expire(id)
    if redis.call('HEXISTS', PROMPTS, id) == 1 then wait_until(id, NOW) end
end
if paused() then return {} end
local rooms, spoken, ids = {}, {}, {}
local function admit(id)
    local record = redis.call('HGET', PROMPTS, id)
    if not record then redis.call('ZREM', WAITING, id) redis.call('ZREM', QUEUED, id) return false end
    local dataset = string.sub(record, 1, string.find(record, '\n', 1, true) - 1)
    local c = rooms[dataset]
    if not c then c = counters(dataset) rooms[dataset] = c spoken[dataset] = 0 end
    if c.cancelled == 1 then forget(id) return false end
    -- Twice the room: a message is cheap, an idle worker is not.
    if room(c, c.in_flight + spoken[dataset] / 2) <= 0 then
        set_aside(id, dataset, c)
        return false
    end
    spoken[dataset] = spoken[dataset] + 1
    return true
end
local function due(set, before, count)
    if #ARGV == 3 then return redis.call('ZRANGEBYSCORE', set, '-inf', before, 'LIMIT', 0, count) end
    local found = {}
    for i = 4, #ARGV do
        local score = redis.call('ZSCORE', set, ARGV[i])
        if score and tonumber(score) <= before then found[#found + 1] = ARGV[i] end
    end
    return found
end
for _, id in ipairs(due(WAITING, NOW, most * 2)) do
    if #ids >= most then break end
    if admit(id) then ids[#ids + 1] = id end
end
if lost > 0 then
    for _, id in ipairs(due(QUEUED, NOW - lost, most_lost)) do
        if admit(id) then ids[#ids + 1] = id end
    end
end
for _, id in ipairs(ids) do
    redis.call('ZREM', WAITING, id)
    redis.call('ZADD', QUEUED, NOW, id)
end
return ids
