-- Prepended to every script. KEYS are fleet/keys.py's SCRIPT_KEYS, in that order.
-- Money is in nano-USD.
-- Time is the server's, in ms: the fleet has one clock whatever its hosts think.
local RUN, DATASETS, PROMPTS, WAITING, QUEUED, CLAIMS, CLAIM, EXPIRED, SETTLED, ATTEMPTS, DONE,
    FAILURES, COMPLETIONS, ERRORS, ENDPOINTS, WORKERS = unpack(KEYS)

local clock = redis.call('TIME')
local NOW = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)

-- Lua has one kind of number; Redis takes integers as text, and no '-0'.
local function int(x) return x == 0 and '0' or string.format('%.0f', x) end
local function run_number(field) return tonumber(redis.call('HGET', RUN, field) or '0') or 0 end
local function add_run(field, by) redis.call('HINCRBY', RUN, field, int(by)) end
local function add(dataset, counter, by)
    redis.call('HINCRBY', DATASETS, dataset .. '|' .. counter, int(by))
end
local function add_at(tag, counter, by)
    redis.call('HINCRBY', ENDPOINTS, tag .. '|' .. counter, int(by))
end

local COUNTERS = {
    'budget', 'prior', 'n', 'tokens', 'squares', 'in_flight', 'cancelled', 'claimed', 'latency',
}
-- The counters that admission reads, in one call.
local function counters(dataset)
    local fields = {}
    for i, name in ipairs(COUNTERS) do fields[i] = dataset .. '|' .. name end
    local values, out = redis.call('HMGET', DATASETS, unpack(fields)), {}
    for i, name in ipairs(COUNTERS) do out[name] = tonumber(values[i] or '0') or 0 end
    return out
end

-- Expected size in tokens of a completion, and of one that is in flight, with its deviation.
-- What is in flight at a given moment is length-biased: long answers stay longer, so its mean
-- size is E[x^2]/E[x] and not E[x]. A prior worth PRIOR_N answers of `prior` tokens
-- (exponentially distributed) stands in until there are measurements.
-- Two more biases, both because short answers come first: early in a run the completed ones are
-- the short ones, and while admission tapers off the ones left are the long ones. The age of
-- what is in flight (`claimed` is the sum of its claim times, `latency` that of the completed)
-- says how much it has generated so far: counted in, as in any censored mean, and, since what
-- has lasted long lasts longer, doubled. AGE_FACTOR errs towards too little, which is mended
-- by admitting more; too much cannot be taken back.
local PRIOR_N = 4
local AGE_FACTOR = 1.3
local function sizes(c)
    local n = c.n + PRIOR_N
    local sum = c.tokens + PRIOR_N * c.prior
    local squares = c.squares + PRIOR_N * 2 * c.prior * c.prior
    local mean = sum / n
    local in_flight = sum > 0 and math.max(squares / sum, mean) or 0
    if c.in_flight > 0 and c.latency > 0 and sum > 0 then
        local so_far = math.max(NOW - c.claimed / c.in_flight, 0) * c.tokens / c.latency
        local uncensored = (sum + c.in_flight * so_far) / n
        in_flight = math.max(in_flight * uncensored / mean, AGE_FACTOR * 2 * so_far)
        in_flight = math.min(in_flight, math.max(run_number('max_tokens'), mean))
    end
    return mean, in_flight, math.sqrt(math.max(squares / n - mean * mean, 0))
end

-- Tokens that the dataset still has room for, with `n` requests in flight; > 0 admits one more.
-- One deviation of what is in flight is held back, so that admission tapers off towards the
-- budget instead of running into it; the last answer is admitted when it brings the total
-- nearer to the budget than stopping would.
local function room(c, n)
    if c.budget == 0 then return math.huge end
    local mean, in_flight, deviation = sizes(c)
    return c.budget - c.tokens - n * in_flight - math.sqrt(n) * deviation - mean / 2
end

-- Nothing is in flight and still there is no room: the dataset has come to its end.
-- → whether it has
local function end_if_full(dataset, c)
    local full = c.in_flight == 0 and room(c, 0) <= 0
    if full then redis.call('HSET', DATASETS, dataset .. '|ended', 1) end
    return full
end

-- A prompt whose dataset has no room waits a little, out of the others' way; at the end it is
-- parked: it stays on the ledger, and in none of the sets, until the budget is raised.
local ROOM_WAIT_MS = 1000
local function set_aside(id, dataset, c)
    redis.call('ZREM', QUEUED, id)
    if end_if_full(dataset, c) then redis.call('ZREM', WAITING, id)
    else redis.call('ZADD', WAITING, NOW + ROOM_WAIT_MS, id) end
end

-- What a claim is, kept as text: `tag` is the endpoint that its request is at ('' between two
-- attempts), `sent` the ms it was sent, `hop` counts the attempts under the claim. Money in nano-USD:
-- `reserved` is what the request is expected to cost, `most` what it may cost.
local FIELDS = {'fence', 'dataset', 'reserved', 'most', 'since', 'nonce', 'worker', 'tag', 'sent', 'hop'}
local PATTERN = string.rep('([^|]*)|', #FIELDS - 1) .. '([^|]*)'
local function claim_of(id)
    local value = redis.call('HGET', CLAIM, id)
    if not value then return nil end
    local parts, c = {string.match(value, PATTERN)}, {}
    for i, name in ipairs(FIELDS) do c[name] = parts[i] end
    for _, name in ipairs({'reserved', 'most', 'since', 'sent', 'hop'}) do c[name] = tonumber(c[name]) end
    return c
end
local function write_claim(id, c)
    local parts = {}
    for i, name in ipairs(FIELDS) do
        parts[i] = type(c[name]) == 'number' and int(c[name]) or c[name]
    end
    redis.call('HSET', CLAIM, id, table.concat(parts, '|'))
end

-- Forget that a prompt is claimed; its reservation is given back.
local function unclaim(id, c)
    redis.call('ZREM', CLAIMS, id)
    redis.call('HDEL', CLAIM, id)
    add(c.dataset, 'in_flight', -1)
    add(c.dataset, 'claimed', -c.since)
    add_run('in_flight', -1)
    add_run('reserved', -c.reserved)
    add_run('reserved_most', -c.most)
    if c.tag ~= '' then add_at(c.tag, 'in_flight', -1) end
end

-- Money that may have been spent without an answer that says so: shown at what was expected,
-- held against the cap at the most.
local function presume(reserved, most)
    add_run('unconfirmed', reserved)
    add_run('unconfirmed_most', most)
end

-- A claim whose worker went silent: its request may have been paid, so what was reserved
-- counts as spent until a late answer says better.
local function expire(id)
    local c = claim_of(id)
    if not c then redis.call('ZREM', CLAIMS, id) return end
    unclaim(id, c)
    presume(c.reserved, c.most)
    add_run('expired', 1)
    redis.call('HSET', EXPIRED, c.fence, int(c.reserved) .. '|' .. int(c.most))
end

-- Settle the money of one response. `presumed` = 1: none came, and it may be billed. `remember`:
-- this call leaves no other trace by which a repetition (a reply lost with the connection) could
-- be told from a second response.
-- → nil when it was settled before; else the claim if it was still this one's, or {}
local SETTLED_MS = 3600 * 1000
local function settle(id, fence, spent, presumed, remember)
    if redis.call('ZSCORE', SETTLED, fence) then return nil end
    local c = claim_of(id)
    local mine = c and c.fence == fence
    if mine then unclaim(id, c) end
    local late = redis.call('HGET', EXPIRED, fence)
    if not mine and not late and spent == 0 then return nil end
    -- A claim that has expired is presumed spent already.
    if late and presumed == 0 then
        local reserved, most = string.match(late, '(%d+)|(%d+)')
        presume(-tonumber(reserved), -tonumber(most))
        redis.call('HDEL', EXPIRED, fence)
    end
    if mine and presumed == 1 then presume(c.reserved, c.most) end
    if remember and spent + presumed > 0 then
        redis.call('ZREMRANGEBYSCORE', SETTLED, '-inf', NOW - SETTLED_MS)
        redis.call('ZADD', SETTLED, NOW, fence)
    end
    if spent > 0 then add_run('spent', spent) end
    return mine and c or {}
end

local function forget(id)
    redis.call('HDEL', PROMPTS, id)
    redis.call('HDEL', ATTEMPTS, id)
    redis.call('ZREM', WAITING, id)
    redis.call('ZREM', QUEUED, id)
end

local function wait_until(id, due)
    redis.call('ZREM', QUEUED, id)
    redis.call('ZADD', WAITING, due, id)
end

local function paused() return redis.call('HGET', RUN, 'paused') end
