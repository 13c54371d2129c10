-- Claim a prompt for one request, at an endpoint.
-- ARGV: prompt_id, worker, lease ms, nonce of this call ('' for none)
-- → {'ok', fence, payload, failed attempts, nano-USD reserved, dataset, tag, provider, prices},
--   or {why not, ms until it may change}
local id, worker, lease, nonce = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

local function granted(c, record)
    local payload = string.sub(record, string.find(record, '\n', 1, true) + 1)
    local e = redis.call('HMGET', ENDPOINTS, c.tag .. '|provider', c.tag .. '|prompt_price', c.tag .. '|completion_price')
    return {'ok', c.fence, payload, redis.call('HGET', ATTEMPTS, id) or '0', int(c.reserved), c.dataset,
        c.tag, e[1] or '', e[2] or '0', e[3] or '0'}
end

if redis.call('HEXISTS', DONE, id) == 1 then forget(id) return {'done', 0} end
local expiry = redis.call('ZSCORE', CLAIMS, id)
if expiry then
    local c = claim_of(id)
    if nonce ~= '' and c.nonce == nonce then
        -- The reply to this very call was lost with its connection: say it again.
        redis.call('ZADD', CLAIMS, NOW + lease, id)
        return granted(c, redis.call('HGET', PROMPTS, id))
    end
    if tonumber(expiry) > NOW then redis.call('ZREM', QUEUED, id) return {'claimed', tonumber(expiry) - NOW} end
    expire(id)
end
local record = redis.call('HGET', PROMPTS, id)
if not record then redis.call('ZREM', QUEUED, id) return {'unknown', 0} end
local due = redis.call('ZSCORE', WAITING, id)
if due and tonumber(due) > NOW then return {'waiting', tonumber(due) - NOW} end

local split = string.find(record, '\n', 1, true)
local dataset, bytes = string.sub(record, 1, split - 1), #record - split
local c = counters(dataset)
if c.cancelled == 1 then forget(id) return {'cancelled', 0} end
if paused() then wait_until(id, NOW) return {'paused', 0} end
if room(c, c.in_flight) <= 0 then
    set_aside(id, dataset, c)
    return {'budget', ROOM_WAIT_MS}
end
local e, wait = choose('')
if not e then wait_until(id, NOW + wait) return {'no endpoint free', wait} end

-- Reserve what an answer in flight is expected to cost. The cap holds the most that each may
-- cost (`max_tokens` is always sent): near its end a run narrows instead of spending beyond it.
local _, tokens = sizes(c)
local reserved, most = prices(e, bytes, tokens)
local limit = breaks(most)
local MONEY_WAIT_MS = 500
if limit then
    if run_number('in_flight') == 0 then
        redis.call('HSET', RUN, limit == 'cap' and 'cap_reached' or 'funds_short', 1)
    end
    -- Room comes when an answer does; asking again at once would only turn messages round.
    wait_until(id, NOW + MONEY_WAIT_MS)
    return {limit, MONEY_WAIT_MS}
end

take(e)
-- With the time in it, a fence stays unique when a power cut takes the last second of the ledger.
local fence = redis.call('HINCRBY', RUN, 'fence', 1) .. '-' .. int(NOW)
redis.call('ZREM', WAITING, id)
redis.call('ZREM', QUEUED, id)
redis.call('ZADD', CLAIMS, NOW + lease, id)
local claim = {
    fence = fence, dataset = dataset, reserved = reserved, most = most, since = NOW, nonce = nonce,
    worker = worker, tag = e.tag, sent = NOW, hop = 0,
}
write_claim(id, claim)
add(dataset, 'in_flight', 1)
add(dataset, 'claimed', NOW)
add_run('in_flight', 1)
add_run('reserved', reserved)
add_run('reserved_most', most)
return granted(claim, record)
