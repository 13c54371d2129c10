-- Claim a prompt for one request.
-- ARGV: prompt_id, worker, lease ms
-- → {'ok', fence, payload, failed attempts, reserved nano-USD}, or {why not, ms until it may change}
local id, worker, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])

if redis.call('HEXISTS', DONE, id) == 1 then forget(id) return {'done', 0} end
local expiry = redis.call('ZSCORE', CLAIMS, id)
if expiry then
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
    end_if_full(dataset, c)
    wait_until(id, NOW)
    return {'budget', 0}
end

-- Reserve what an answer in flight is expected to cost; the cap holds four deviations of all
-- that is in flight, and one answer of the longest kind, on top of it.
local mean, in_flight, deviation = sizes(c)
local price, most = run_number('completion_price'), run_number('max_tokens')
local prompt_cost = math.ceil(#payload / 2) * run_number('prompt_price')
local longest = prompt_cost + most * price
local reserved = math.min(math.ceil(prompt_cost + in_flight * price), math.ceil(longest))
local variance = math.ceil((deviation * price / 1000) ^ 2)
local cap = run_number('cap')
if cap > 0 then
    local held = run_number('spent') + run_number('unconfirmed') + run_number('reserved')
    local margin = 4000 * math.sqrt(math.max(run_number('reserved_variance'), 0))
    if held + margin + longest > cap then
        if run_number('in_flight') == 0 then redis.call('HSET', RUN, 'cap_reached', 1) end
        wait_until(id, NOW)
        return {'cap', 0}
    end
end

-- Only a claim that is granted uses up the breaker's probe.
if probe > 0 then redis.call('HSET', RUN, 'breaker_probe', int(NOW + run_number('probe_ms'))) end
local fence = redis.call('HINCRBY', RUN, 'fence', 1)
redis.call('ZREM', WAITING, id)
redis.call('ZREM', QUEUED, id)
redis.call('ZADD', CLAIMS, NOW + lease, id)
redis.call('HSET', CLAIM, id, fence .. '|' .. dataset .. '|' .. int(reserved) .. '|' .. int(variance) .. '|' .. worker)
add(dataset, 'in_flight', 1)
add_run('in_flight', 1)
add_run('reserved', reserved)
add_run('reserved_variance', variance)
return {'ok', tostring(fence), payload, redis.call('HGET', ATTEMPTS, id) or '0', int(reserved), dataset}
