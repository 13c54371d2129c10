-- Claim a prompt for one request.
-- ARGV: prompt_id, worker, lease ms, nonce of this call ('' for none)
-- → {'ok', fence, payload, failed attempts, reserved nano-USD}, or {why not, ms until it may change}
local id, worker, lease, nonce = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

if redis.call('HEXISTS', DONE, id) == 1 then forget(id) return {'done', 0} end
local expiry = redis.call('ZSCORE', CLAIMS, id)
if expiry then
    local fence, dataset, reserved, _, _, held_by = claim_of(id)
    if nonce ~= '' and held_by == nonce then
        -- The reply to this very call was lost with its connection: say it again.
        redis.call('ZADD', CLAIMS, NOW + lease, id)
        local record = redis.call('HGET', PROMPTS, id)
        local payload = string.sub(record, string.find(record, '\n', 1, true) + 1)
        return {'ok', fence, payload, redis.call('HGET', ATTEMPTS, id) or '0', int(reserved), dataset}
    end
    if tonumber(expiry) > NOW then redis.call('ZREM', QUEUED, id) return {'claimed', tonumber(expiry) - NOW} end
    expire(id)
end
local record = redis.call('HGET', PROMPTS, id)
if not record then redis.call('ZREM', QUEUED, id) return {'unknown', 0} end
local due = redis.call('ZSCORE', WAITING, id)
if due and tonumber(due) > NOW then return {'waiting', tonumber(due) - NOW} end

local split = string.find(record, '\n', 1, true)
local dataset, payload = string.sub(record, 1, split - 1), string.sub(record, split + 1)
local c = counters(dataset)
if c.cancelled == 1 then forget(id) return {'cancelled', 0} end
if paused() then wait_until(id, NOW) return {'paused', 0} end

local probe = run_number('breaker_probe')
if NOW < probe then wait_until(id, probe) return {'breaker', probe - NOW} end
if room(c, c.in_flight) <= 0 then
    set_aside(id, dataset, c)
    return {'budget', ROOM_WAIT_MS}
end

-- Reserve what an answer in flight is expected to cost. The cap holds the most that each may
-- cost (`max_tokens` is always sent): near its end a run narrows instead of spending beyond it.
local _, in_flight = sizes(c)
local price = run_number('completion_price')
local prompt_cost = math.ceil(#payload / 2) * run_number('prompt_price')
local most = math.ceil(prompt_cost + run_number('max_tokens') * price)
local reserved = math.min(math.ceil(prompt_cost + in_flight * price), most)
local cap = run_number('cap')
local CAP_WAIT_MS = 500
if cap > 0 then
    local held = run_number('spent') + run_number('unconfirmed') + run_number('reserved_most')
    if held + most > cap then
        if run_number('in_flight') == 0 then redis.call('HSET', RUN, 'cap_reached', 1) end
        -- Room comes when an answer does; asking again at once would only turn messages round.
        wait_until(id, NOW + CAP_WAIT_MS)
        return {'cap', CAP_WAIT_MS}
    end
end

-- Only a claim that is granted uses up the breaker's probe.
if probe > 0 then redis.call('HSET', RUN, 'breaker_probe', int(NOW + run_number('probe_ms'))) end
-- With the time in it, a fence stays unique when a power cut takes the last second of the ledger.
local fence = redis.call('HINCRBY', RUN, 'fence', 1) .. '-' .. int(NOW)
redis.call('ZREM', WAITING, id)
redis.call('ZREM', QUEUED, id)
redis.call('ZADD', CLAIMS, NOW + lease, id)
redis.call('HSET', CLAIM, id, fence .. '|' .. dataset .. '|' .. int(reserved) .. '|' .. int(most) .. '|' .. int(NOW) .. '|' .. nonce .. '|' .. worker)
add(dataset, 'in_flight', 1)
add_run('in_flight', 1)
add_run('reserved', reserved)
add_run('reserved_most', most)
add(dataset, 'claimed', NOW)
return {'ok', fence, payload, redis.call('HGET', ATTEMPTS, id) or '0', int(reserved), dataset}
