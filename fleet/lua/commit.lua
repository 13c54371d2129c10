-- A response that completes its prompt: record it, mark the prompt done, settle the money.
-- ARGV: prompt_id, fence, dataset, nano-USD, prompt tokens, completion tokens, truncated 0/1,
--       provider, event, body, follow-up prompt_id ('' for none), follow-up record
-- → 'committed' | 'duplicate' (another response was first; the money counts) | 'repeated'
local id, fence, dataset = ARGV[1], ARGV[2], ARGV[3]
local spent, prompt_tokens, tokens = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local provider = ARGV[8]

local first = redis.call('HGET', DONE, id)
if first == fence then return 'repeated' end
local mine, since = settle(id, fence, spent, 0, first)
if mine == nil and first then return 'repeated' end
redis.call('HINCRBY', PROVIDERS, provider .. '|spent', int(spent))
if first then
    add_run('duplicates', 1)
    return 'duplicate'
end

-- A late answer may find its prompt claimed again: the first commit wins, and the other's
-- money is counted when it comes.
redis.call('XADD', COMPLETIONS, '*', 'm', ARGV[9], 'r', ARGV[10])
redis.call('HSET', DONE, id, fence)
forget(id)
if redis.call('HDEL', FAILURES, id) == 1 then add(dataset, 'failed', -1) end
add(dataset, 'done', 1)
add(dataset, 'n', 1)
if mine then add(dataset, 'latency', NOW - since) end
add(dataset, 'tokens', tokens)
add(dataset, 'squares', tokens * tokens)
add(dataset, 'prompt_tokens', prompt_tokens)
add(dataset, 'spent', spent)
add(dataset, 'truncated', tonumber(ARGV[7]))
redis.call('HINCRBY', PROVIDERS, provider .. '|done', 1)
redis.call('HINCRBY', PROVIDERS, provider .. '|tokens', int(tokens))
if ARGV[11] ~= '' and redis.call('HEXISTS', DONE, ARGV[11]) == 0 then
    redis.call('HSETNX', PROMPTS, ARGV[11], ARGV[12])
    redis.call('ZADD', WAITING, NOW, ARGV[11])
    if redis.call('HDEL', FAILURES, ARGV[11]) == 1 then add(dataset, 'failed', -1) end
end
return 'committed'
