-- A response that completes its prompt: record it, mark the prompt done, settle the money.
-- ARGV: prompt_id, fence, dataset, nano-USD, prompt tokens, completion tokens, truncated 0/1,
--       endpoint that served it, latency ms, event, body, follow-up prompt_id ('' for none),
--       follow-up record
-- → 'committed' | 'duplicate' (another response was first; the money counts) | 'repeated'
local id, fence, dataset = ARGV[1], ARGV[2], ARGV[3]
local spent, prompt_tokens, tokens = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local tag, latency = ARGV[8], tonumber(ARGV[9])

local first = redis.call('HGET', DONE, id)
if first == fence then return 'repeated' end
local mine = settle(id, fence, spent, 0, first)
if mine == nil and first then return 'repeated' end
add_at(tag, 'spent', spent)
if mine and mine.tag and mine.tag ~= '' then judge(mine.tag, mine.sent, 'good', 0) end
if first then
    add_run('duplicates', 1)
    return 'duplicate'
end

-- A late answer may find its prompt claimed again: the first commit wins, and the other's
-- money is counted when it comes.
redis.call('XADD', COMPLETIONS, '*', 'm', ARGV[10], 'r', ARGV[11])
redis.call('HSET', DONE, id, fence)
forget(id)
if redis.call('HDEL', FAILURES, id) == 1 then add(dataset, 'failed', -1) end
add(dataset, 'done', 1)
add(dataset, 'n', 1)
if mine and mine.since then add(dataset, 'latency', NOW - mine.since) end
add(dataset, 'tokens', tokens)
add(dataset, 'squares', tokens * tokens)
add(dataset, 'prompt_tokens', prompt_tokens)
add(dataset, 'spent', spent)
add(dataset, 'truncated', tonumber(ARGV[7]))
add_at(tag, 'done', 1)
add_at(tag, 'tokens', tokens)
add_at(tag, 'prompt_tokens', prompt_tokens)
add_at(tag, 'latency', latency)
-- A histogram whose classes grow by the fourth root of 2.
add_at(tag, 'latency' .. math.floor(4 * math.log(math.max(latency, 1)) / math.log(2)), 1)
if ARGV[12] ~= '' and redis.call('HEXISTS', DONE, ARGV[12]) == 0 then
    redis.call('HSETNX', PROMPTS, ARGV[12], ARGV[13])
    redis.call('ZADD', WAITING, NOW, ARGV[12])
    if redis.call('HDEL', FAILURES, ARGV[12]) == 1 then add(dataset, 'failed', -1) end
end
return 'committed'
